#include "core/ops/rmsnorm.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/devices.h"
#include "tests/support/gradients.h"

namespace ferry::testing {
namespace {

constexpr double kEps = 1e-5;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class RmsnormOp : public DeviceTest {
 protected:
  // One rounding to the dtype, and a few of the accumulator.
  double tolerance() const { return epsilon_of(dtype()) + 16 * epsilon_of(accumulate()); }

  void expect_backward_close(int64_t rows, int64_t width, bool with_residual) {
    SCOPED_TRACE(concat(rows, " rows of ", width, with_residual ? ", residual" : ""));
    const Tensor x = random({rows, width}, 1), weight = random({width}, 2);
    const Tensor dy = random({rows, width}, 3);
    const Tensor dresidual = with_residual ? random({rows, width}, 4) : Tensor();
    const Tensor y = output({rows, width}), rstd = output({rows}, accumulate());
    const Tensor dx = output({rows, width});
    const Tensor dweight = random_tensor(stream(), {width}, accumulate(), 5);
    const Tensor want_dweight = exact(dweight);
    rmsnorm_forward(stream(), y, rstd, x, weight, kEps);
    rmsnorm_backward(stream(), dx, dweight, dy, x, rstd, weight, dresidual);

    const Tensor want_dx = reference_output({rows, width});
    rmsnorm_backward(reference(), want_dx, want_dweight, exact(dy), exact(x), exact(rstd),
                     exact(weight), exact(dresidual));
    const double rows_error = (static_cast<double>(rows) + 8) * 4 * epsilon_of(accumulate());
    const double factor = std::sqrt(1 / kEps);  // largest rstd
    expect_close(dweight, want_dweight, rows_error, rows_error);
    expect_close(dx, want_dx, tolerance(), 8 * epsilon_of(accumulate()) * (width < 8 ? factor : 8));
  }
};

TEST_P(RmsnormOp, IsTheFormula) {
  for (const int64_t width : {1, 63, 64, 65, 127, 129, 1000}) {
    SCOPED_TRACE(width);
    const int64_t rows = 5;
    const Tensor x = random({rows, width}, 1, 3), weight = random({width}, 2);
    const Tensor y = output({rows, width}), rstd = output({rows}, accumulate());
    rmsnorm_forward(stream(), y, rstd, x, weight, kEps);

    const auto in = read_back_as_double(stream(), x), w = read_back_as_double(stream(), weight);
    std::vector<double> want_y, want_rstd;
    for (int64_t t = 0; t < rows; ++t) {
      double squares = 0;
      for (int64_t i = 0; i < width; ++i) squares += in[t * width + i] * in[t * width + i];
      want_rstd.push_back(1 / std::sqrt(squares / static_cast<double>(width) + kEps));
      for (int64_t i = 0; i < width; ++i) {
        want_y.push_back(in[t * width + i] * want_rstd.back() * w[i]);
      }
    }
    testing::expect_close(read_back_as_double(stream(), rstd), want_rstd,
                          16 * epsilon_of(accumulate()), 0);
    testing::expect_close(read_back_as_double(stream(), y), want_y, tolerance(), 0);
  }
}

TEST_P(RmsnormOp, AddsTheResidualFirstAndMayWriteOverIt) {
  const Tensor x = random({7, 65}, 1), residual = random({7, 65}, 2), weight = random({65}, 3);
  const Tensor sum = output({7, 65}), y = output({7, 65}), rstd = output({7}, accumulate());
  add_rmsnorm_forward(stream(), sum, y, rstd, x, residual, weight, kEps);

  const Tensor want_sum = reference_output({7, 65}), want_y = reference_output({7, 65});
  const Tensor want_rstd = reference_output({7});
  add_rmsnorm_forward(reference(), want_sum, want_y, want_rstd, exact(x), exact(residual),
                      exact(weight), kEps);
  expect_close(sum, want_sum, epsilon_of(dtype()) / 2, 0);
  // y belongs to the rounded sum.
  rmsnorm_forward(reference(), want_y, want_rstd, exact(sum), exact(weight), kEps);
  expect_close(y, want_y, tolerance(), 0);
  expect_close(rstd, want_rstd, 16 * epsilon_of(accumulate()), 0);

  const Tensor y_again = output({7, 65});
  add_rmsnorm_forward(stream(), residual, y_again, rstd, x, residual, weight, kEps);
  expect_same_bits(stream(), residual, sum);
  expect_same_bits(stream(), y_again, y);
}

TEST_P(RmsnormOp, BackwardIsCloseToFloat64) {
  for (const int64_t width : {1, 63, 64, 65, 127, 129, 1000}) {
    for (const int64_t rows : {1, 6, 130}) {
      expect_backward_close(rows, width, false);
      expect_backward_close(rows, width, true);
    }
  }
}

TEST_P(RmsnormOp, ZeroRowsChangeNothing) { expect_backward_close(0, 64, true); }

TEST_P(RmsnormOp, BackwardMayWriteOverItsInputs) {
  const Tensor x = random({5, 65}, 1), weight = random({65}, 2), dy = random({5, 65}, 3);
  const Tensor dresidual = random({5, 65}, 4);
  const Tensor y = output({5, 65}), rstd = output({5}, accumulate()), dx = output({5, 65});
  const Tensor dweight = zeros(stream(), {65}, accumulate());
  rmsnorm_forward(stream(), y, rstd, x, weight, kEps);
  rmsnorm_backward(stream(), dx, dweight, dy, x, rstd, weight, dresidual);

  const Tensor over_dy = output({5, 65}), over_dresidual = output({5, 65});
  stream().copy(over_dy, dy);
  stream().copy(over_dresidual, dresidual);
  const Tensor scratch = zeros(stream(), {65}, accumulate());
  rmsnorm_backward(stream(), over_dy, scratch, over_dy, x, rstd, weight, dresidual);
  rmsnorm_backward(stream(), over_dresidual, scratch, dy, x, rstd, weight, over_dresidual);
  expect_same_bits(stream(), over_dy, dx);
  expect_same_bits(stream(), over_dresidual, dx);
}

TEST_P(RmsnormOp, RefusesWrongArguments) {
  const Tensor x = random({4, 8}, 1), weight = random({8}, 2), y = output({4, 8});
  const Tensor rstd = output({4}, accumulate());
  EXPECT_THAT([&] { rmsnorm_forward(stream(), y, rstd, x, random({7}, 3), kEps); },
              ThrowsMessage<Error>(HasSubstr("weight has shape [7], not [8]")));
  EXPECT_THAT([&] { rmsnorm_forward(stream(), y, rstd, x, output({8}, DType::I32), kEps); },
              ThrowsMessage<Error>(HasSubstr("weight is i32")));
  EXPECT_THAT(
      [&] {
        rmsnorm_forward(stream(), output({4, 9}), rstd, x, weight, kEps);
      },
      ThrowsMessage<Error>(HasSubstr("has shape [4, 9], not [4, 8]")));
  EXPECT_THAT([&] { add_rmsnorm_forward(stream(), y, y, rstd, x, x, weight, kEps); },
              ThrowsMessage<Error>(HasSubstr("y is the memory of sum")));
  EXPECT_THAT(
      [&] {
        rmsnorm_backward(stream(), x, output({8}, accumulate()), y, x, rstd, weight, Tensor());
      },
      ThrowsMessage<Error>(HasSubstr("dx is the memory of x")));
}

INSTANTIATE_TEST_SUITE_P(Devices, RmsnormOp, device_cases(), case_name);

class RmsnormGradients : public CpuTest {};

TEST_F(RmsnormGradients, MatchDifferenceQuotients) {
  const DType f64 = DType::F64;
  const Tensor x = random_tensor(stream(), {3, 19}, f64, 1);
  const Tensor residual = random_tensor(stream(), {3, 19}, f64, 2);
  const Tensor weight = random_tensor(stream(), {19}, f64, 3);
  const Tensor dy = random_tensor(stream(), {3, 19}, f64, 4);
  const Tensor dsum = random_tensor(stream(), {3, 19}, f64, 5);
  const Tensor sum = poisoned(stream(), {3, 19}, f64), y = poisoned(stream(), {3, 19}, f64);
  const Tensor rstd = poisoned(stream(), {3}, f64), dx = poisoned(stream(), {3, 19}, f64);
  const Tensor dweight = zeros(stream(), {19}, f64);
  const auto loss = [&] {
    add_rmsnorm_forward(stream(), sum, y, rstd, x, residual, weight, kEps);
    return dot(stream(), y, dy) + dot(stream(), sum, dsum);
  };
  loss();
  rmsnorm_backward(stream(), dx, dweight, dy, sum, rstd, weight, dsum);
  expect_element_gradients(stream(), {"x", x, dx}, loss);
  expect_element_gradients(stream(), {"residual", residual, dx}, loss);
  expect_element_gradients(stream(), {"weight", weight, dweight}, loss);
}

}  // namespace
}  // namespace ferry::testing
