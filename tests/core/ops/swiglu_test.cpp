#include "core/ops/swiglu.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/devices.h"
#include "tests/support/gradients.h"

namespace ferry::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class SwigluOp : public DeviceTest {
 protected:
  double tolerance() const { return epsilon_of(dtype()) + 16 * epsilon_of(accumulate()); }
  Tensor probs(int64_t rows, uint64_t seed) {
    return random_tensor(stream(), {rows}, accumulate(), seed);
  }
};

TEST_P(SwigluOp, IsTheFormula) {
  for (const int64_t width : {1, 63, 64, 65, 127, 129}) {
    for (const bool with_prob : {false, true}) {
      SCOPED_TRACE(concat(width, with_prob ? " with prob" : ""));
      const int64_t rows = 5;
      const Tensor gate_up = random({rows, 2 * width}, 1, 12);
      const Tensor prob = with_prob ? probs(rows, 2) : Tensor();
      const Tensor h = output({rows, width});
      swiglu_forward(stream(), h, gate_up, prob);

      const auto in = read_back_as_double(stream(), gate_up);
      std::vector<double> factor(rows, 1), want;
      if (with_prob) factor = read_back_as_double(stream(), prob);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < width; ++i) {
          const double gate = in[r * 2 * width + i], up = in[r * 2 * width + width + i];
          want.push_back(gate / (1 + std::exp(-gate)) * up * factor[r]);
        }
      }
      testing::expect_close(read_back_as_double(stream(), h), want, tolerance(), 0);
    }
  }
}

TEST_P(SwigluOp, SaturatesWithoutOverflow) {
  const Tensor gate_up =
      tensor_of(stream(), {-1e30, -100, 0, 100, 1e30, 2, 2, 2, 2, 2}, {1, 10}, dtype());
  const Tensor h = output({1, 5});
  swiglu_forward(stream(), h, gate_up, Tensor());
  testing::expect_close(read_back_as_double(stream(), h), {0, 0, 0, 200, 2e30}, 0x1p-7, 1e-35);
}

TEST_P(SwigluOp, BackwardIsCloseToFloat64) {
  for (const int64_t width : {1, 63, 64, 65, 127, 129}) {
    for (const int64_t rows : {0, 1, 6}) {
      SCOPED_TRACE(concat(rows, " rows of ", width));
      const Tensor gate_up = random({rows, 2 * width}, 1, 3), dh = random({rows, width}, 2);
      const Tensor prob = probs(rows, 3);
      const Tensor dgate_up = output({rows, 2 * width}), dprob = output({rows}, accumulate());
      swiglu_backward(stream(), dgate_up, dprob, dh, gate_up, prob);

      const Tensor want = reference_output({rows, 2 * width}),
                   want_dprob = reference_output({rows});
      swiglu_backward(reference(), want, want_dprob, exact(dh), exact(gate_up), exact(prob));
      const double sum_error = static_cast<double>(width + 16) * 9 * epsilon_of(accumulate());
      expect_close(dgate_up, want, tolerance(), 16 * epsilon_of(accumulate()));
      expect_close(dprob, want_dprob, 0, sum_error);
    }
  }
}

TEST_P(SwigluOp, BackwardMayWriteOverItsInput) {
  const Tensor gate_up = random({5, 130}, 1, 3), dh = random({5, 65}, 2);
  const Tensor dgate_up = output({5, 130});
  swiglu_backward(stream(), dgate_up, Tensor(), dh, gate_up, Tensor());
  swiglu_backward(stream(), gate_up, Tensor(), dh, gate_up, Tensor());
  expect_same_bits(stream(), gate_up, dgate_up);
}

TEST_P(SwigluOp, RefusesWrongArguments) {
  const Tensor gate_up = random({4, 16}, 1), h = output({4, 8});
  EXPECT_THAT(
      [&] {
        swiglu_forward(stream(), output({4, 7}), gate_up, Tensor());
      },
      ThrowsMessage<Error>(HasSubstr("h has shape [4, 7], not [4, 8]")));
  EXPECT_THAT(
      [&] {
        swiglu_forward(stream(), h, random({4, 17}, 1), Tensor());
      },
      ThrowsMessage<Error>(HasSubstr("gate_up has shape [4, 17]")));
  EXPECT_THAT([&] { swiglu_forward(stream(), h, gate_up, probs(3, 1)); },
              ThrowsMessage<Error>(HasSubstr("prob has shape [3], not [4]")));
  EXPECT_THAT([&] { swiglu_forward(stream(), h, gate_up, output({4}, DType::I32)); },
              ThrowsMessage<Error>(HasSubstr("prob is i32")));
  EXPECT_THAT(
      [&] { swiglu_backward(stream(), gate_up, output({3}, accumulate()), h, gate_up, Tensor()); },
      ThrowsMessage<Error>(HasSubstr("dprob has shape [3], not [4]")));
}

INSTANTIATE_TEST_SUITE_P(Devices, SwigluOp, device_cases(), case_name);

class SwigluGradients : public CpuTest {};

TEST_F(SwigluGradients, MatchDifferenceQuotients) {
  const DType f64 = DType::F64;
  const Tensor gate_up = random_tensor(stream(), {3, 34}, f64, 1, 2);
  const Tensor prob = random_tensor(stream(), {3}, f64, 2);
  const Tensor dh = random_tensor(stream(), {3, 17}, f64, 3);
  const Tensor h = poisoned(stream(), {3, 17}, f64), dgate_up = poisoned(stream(), {3, 34}, f64);
  const Tensor dprob = poisoned(stream(), {3}, f64);
  const auto loss = [&] {
    swiglu_forward(stream(), h, gate_up, prob);
    return dot(stream(), h, dh);
  };
  swiglu_backward(stream(), dgate_up, dprob, dh, gate_up, prob);
  expect_element_gradients(stream(), {"gate_up", gate_up, dgate_up}, loss);
  expect_element_gradients(stream(), {"prob", prob, dprob}, loss);
}

}  // namespace
}  // namespace ferry::testing
