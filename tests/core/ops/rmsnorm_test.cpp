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

// Widths of whole 16-byte vectors, of which a GPU holds rows in different ways, and others.
TEST_P(RmsnormOp, IsTheFormula) {
  for (const int64_t width :
       {1, 8, 63, 64, 65, 127, 129, 1000, 1032, 2048, 2056, 4096, 4104, 8192}) {
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
  for (const int64_t width : {64, 65, 1000, 2048, 2056, 4104}) {
    SCOPED_TRACE(width);
    const Shape shape{7, width};
    const Tensor x = random(shape, 1), residual = random(shape, 2), weight = random({width}, 3);
    const Tensor sum = output(shape), y = output(shape), rstd = output({7}, accumulate());
    add_rmsnorm_forward(stream(), sum, y, rstd, x, residual, weight, kEps);

    const Tensor want_sum = reference_output(shape), want_y = reference_output(shape);
    const Tensor want_rstd = reference_output({7});
    add_rmsnorm_forward(reference(), want_sum, want_y, want_rstd, exact(x), exact(residual),
                        exact(weight), kEps);
    expect_close(sum, want_sum, epsilon_of(dtype()) / 2, 0);
    // y belongs to the rounded sum.
    rmsnorm_forward(reference(), want_y, want_rstd, exact(sum), exact(weight), kEps);
    expect_close(y, want_y, tolerance(), 0);
    expect_close(rstd, want_rstd, 16 * epsilon_of(accumulate()), 0);

    const Tensor over_x = output(shape), y_again = output(shape);
    stream().copy(over_x, x);
    add_rmsnorm_forward(stream(), over_x, y_again, rstd, over_x, residual, weight, kEps);
    expect_same_bits(stream(), over_x, sum);
    expect_same_bits(stream(), y_again, y);
    add_rmsnorm_forward(stream(), residual, y_again, rstd, x, residual, weight, kEps);
    expect_same_bits(stream(), residual, sum);
    expect_same_bits(stream(), y_again, y);
  }
}

TEST_P(RmsnormOp, BackwardIsCloseToFloat64) {
  for (const int64_t width : {1, 63, 64, 65, 127, 129, 1000}) {
    for (const int64_t rows : {1, 6, 130}) {
      expect_backward_close(rows, width, false);
      expect_backward_close(rows, width, true);
    }
  }
}

// As many rows as a GPU's blocks take in one pass, and some more; widths as in IsTheFormula.
TEST_P(RmsnormOp, BackwardOfManyRowsAndOfWideOnesIsCloseToFloat64) {
  struct Case {
    int64_t rows, width;
  };
  for (const Case& c : {Case{1, 8}, Case{1057, 8}, Case{1060, 64}, Case{1, 2048}, Case{530, 2048},
                        Case{267, 2056}, Case{2, 4096}, Case{3, 4104}, Case{2, 8192}}) {
    expect_backward_close(c.rows, c.width, true);
  }
}

// Rows of whole vectors that begin at an address where there are none.
TEST_P(RmsnormOp, RowsMayBeginAtAnyAddress) {
  const int64_t rows = 3, width = 64;
  const auto unaligned = [&](const Tensor& flat) {
    return flat.rows(1, rows * width + 1).reshape({rows, width});
  };
  const Tensor flat_x = random({rows * width + 1}, 1), flat_dy = random({rows * width + 1}, 2);
  const Tensor x = unaligned(flat_x), dy = unaligned(flat_dy), weight = random({width}, 3);
  const Tensor flat_y = output({rows * width + 1}), flat_dx = output({rows * width + 1});
  const Tensor y = unaligned(flat_y), dx = unaligned(flat_dx);
  const Tensor rstd = output({rows}, accumulate());
  const Tensor dweight = zeros(stream(), {width}, accumulate());
  rmsnorm_forward(stream(), y, rstd, x, weight, kEps);
  rmsnorm_backward(stream(), dx, dweight, dy, x, rstd, weight, Tensor());

  const Tensor want_y = reference_output({rows, width}), want_rstd = reference_output({rows});
  const Tensor want_dx = reference_output({rows, width}), want_dweight = reference_output({width});
  reference().zero(want_dweight);
  rmsnorm_forward(reference(), want_y, want_rstd, exact(x), exact(weight), kEps);
  rmsnorm_backward(reference(), want_dx, want_dweight, exact(dy), exact(x), want_rstd,
                   exact(weight), Tensor());
  expect_close(y, want_y, tolerance(), 0);
  expect_close(rstd, want_rstd, 16 * epsilon_of(accumulate()), 0);
  expect_close(dx, want_dx, tolerance(), 64 * epsilon_of(accumulate()));
  expect_close(dweight, want_dweight, 64 * epsilon_of(accumulate()), 64 * epsilon_of(accumulate()));
}

TEST_P(RmsnormOp, ZeroRowsChangeNothing) { expect_backward_close(0, 64, true); }

TEST_P(RmsnormOp, BackwardMayWriteOverItsInputs) {
  for (const int64_t width : {64, 65, 2048, 4096}) {
    SCOPED_TRACE(width);
    const int64_t rows = width == 2048 ? 530 : 5;  // more than one for a GPU's block
    const Shape shape{rows, width};
    const Tensor x = random(shape, 1), weight = random({width}, 2), dy = random(shape, 3);
    const Tensor dresidual = random(shape, 4);
    const Tensor y = output(shape), rstd = output({rows}, accumulate()), dx = output(shape);
    const Tensor dweight = zeros(stream(), {width}, accumulate());
    rmsnorm_forward(stream(), y, rstd, x, weight, kEps);
    rmsnorm_backward(stream(), dx, dweight, dy, x, rstd, weight, dresidual);

    const Tensor over_dy = output(shape), over_dresidual = output(shape);
    stream().copy(over_dy, dy);
    stream().copy(over_dresidual, dresidual);
    const Tensor scratch = zeros(stream(), {width}, accumulate());
    rmsnorm_backward(stream(), over_dy, scratch, over_dy, x, rstd, weight, dresidual);
    expect_same_bits(stream(), scratch, dweight);  // the order of sums is fixed
    rmsnorm_backward(stream(), over_dresidual, scratch, dy, x, rstd, weight, over_dresidual);
    expect_same_bits(stream(), over_dy, dx);
    expect_same_bits(stream(), over_dresidual, dx);
  }
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
