#include "core/ops/elementwise.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numbers>

#include "tests/support/devices.h"
#include "tests/support/gradients.h"

namespace ferry::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr RandomKey kKey{.seed = 0x123456789abcdefull, .step = 7, .site = 3};
const std::vector<int64_t> kSizes = {0, 1, 63, 64, 65, 127, 129, 100001};

class ElementwiseOp : public DeviceTest {
 protected:
  std::vector<double> values(const Tensor& tensor) { return read_back_as_double(stream(), tensor); }
  double rounding() const { return epsilon_of(dtype()) / 2; }
};

TEST_P(ElementwiseOp, AddRoundsOnce) {
  for (const int64_t n : kSizes) {
    const Tensor a = random({n}, 1), b = random({n}, 2), y = output({n});
    add(stream(), y, a, b);
    auto want = values(a);
    const auto right = values(b);
    for (int64_t i = 0; i < n; ++i) want[i] += right[i];
    testing::expect_close(values(y), want, rounding() + epsilon_of(accumulate()) / 2, 0);
    add(stream(), a, a, b);
    expect_same_bits(stream(), a, y);
  }
}

TEST_P(ElementwiseOp, AccumulateTakesNarrowerTypes) {
  for (const DType narrow : {dtype(), DType::BF16, accumulate()}) {
    const Tensor x = random_tensor(stream(), {129}, narrow, 1);
    const Tensor y = random_tensor(stream(), {129}, accumulate(), 2);
    auto want = values(y);
    const auto in = values(x);
    for (size_t i = 0; i < in.size(); ++i) want[i] += in[i];
    ferry::accumulate(stream(), y, x);
    testing::expect_close(values(y), want, epsilon_of(accumulate()), 0);
  }
  const Tensor y = random({65}, 3), x = random({65}, 4), sum = output({65});
  add(stream(), sum, y, x);
  ferry::accumulate(stream(), y, x);
  expect_same_bits(stream(), y, sum);
}

TEST_P(ElementwiseOp, ScaleMultipliesInPlace) {
  for (const int64_t n : kSizes) {
    const Tensor y = random({n}, 1);
    auto want = values(y);
    for (double& value : want) value *= 0.3;
    scale(stream(), y, 0.3);
    testing::expect_close(values(y), want, rounding() + 2 * epsilon_of(accumulate()), 0);
  }
}

TEST_P(ElementwiseOp, CastRoundsToNearestEven) {
  // 1 + 2^-8 is halfway between two bfloat16 numbers, the lower of which is even.
  const std::vector<double> exact = {1 + 0x1p-8, 1 + 3 * 0x1p-8, 1 + 0x1p-8 + 0x1p-20, -0.0, 1e38};
  const Tensor x = tensor_of(stream(), exact, {5}, accumulate());
  const Tensor y = output({5}, DType::BF16), back = output({5}, accumulate());
  cast(stream(), y, x);
  cast(stream(), back, y);
  const double largest = static_cast<float>(BFloat16(1e38f));
  EXPECT_THAT(values(y), ::testing::ElementsAre(1, 1 + 0x1p-6, 1 + 0x1p-7, 0, largest));
  EXPECT_EQ(values(back), values(y));
}

TEST_P(ElementwiseOp, CastToItsOwnTypeIsACopy) {
  for (const int64_t n : kSizes) {
    const Tensor x = random({n}, 1), y = output({n});
    cast(stream(), y, x);
    expect_same_bits(stream(), y, x);
  }
}

TEST_P(ElementwiseOp, FillSetsEveryElement) {
  for (const int64_t n : kSizes) {
    const Tensor y = output({n});
    fill(stream(), y, 0.75);
    EXPECT_THAT(values(y), Each(0.75));
  }
}

TEST_P(ElementwiseOp, NormalNumbersAreBoxMuller) {
  const Tensor y = output({129});
  fill_normal(stream(), y, 0.02, kKey, 1ull << 33);
  std::vector<double> want;
  for (uint64_t i = 0; i < 129; ++i) {
    const auto words = philox(kKey, (1ull << 33) + i);
    const double u = ((words[0] >> 8) + 1) * 0x1p-24, t = (words[1] >> 8) * 0x1p-24;
    want.push_back(0.02 * std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * t));
  }
  testing::expect_close(values(y), want, rounding(), 1e-7);
}

TEST_P(ElementwiseOp, NormalNumbersHaveTheirMoments) {
  const int64_t n = 100001;
  const Tensor y = output({n});
  fill_normal(stream(), y, 2, kKey, 0);
  double sum = 0, squares = 0, fourth = 0;
  for (const double value : values(y)) {
    sum += value / 2;
    squares += value * value / 4;
    fourth += value * value * value * value / 16;
  }
  // Five standard errors of each moment.
  const double error = 5 / std::sqrt(static_cast<double>(n));
  EXPECT_NEAR(sum / n, 0, error);
  EXPECT_NEAR(squares / n, 1, error * std::sqrt(2));
  EXPECT_NEAR(fourth / n, 3, error * std::sqrt(96));
}

TEST_P(ElementwiseOp, NormalNumbersDoNotDependOnTheCut) {
  const Tensor whole = output({100}), part = output({37});
  fill_normal(stream(), whole, 1, kKey, 5);
  fill_normal(stream(), part, 1, kKey, 5 + 21);
  expect_same_bits(stream(), part, whole.rows(21, 58));
}

TEST_P(ElementwiseOp, NormalNumbersOfRowsAreThoseOfTheWhole) {
  const int64_t rows = 6, columns = 40;
  const Tensor whole = output({rows, columns});
  fill_normal(stream(), whole, 0.5, kKey, 1ull << 33);
  const auto all = values(whole);
  for (const int64_t width : {0, 1, 4, 13, 16, 29}) {
    for (const int64_t height : {0, 1, 4}) {
      SCOPED_TRACE(concat(height, " x ", width));
      const int64_t first_row = 2, first_column = 11;
      const Tensor part = output({height, width});
      fill_normal_rows(stream(), part, 0.5, kKey,
                       (1ull << 33) + static_cast<uint64_t>(first_row * columns + first_column),
                       columns);
      std::vector<double> want;
      for (int64_t r = first_row; r < first_row + height; ++r)
        for (int64_t c = first_column; c < first_column + width; ++c)
          want.push_back(all[static_cast<size_t>(r * columns + c)]);
      EXPECT_EQ(values(part), want);
    }
  }
}

TEST_P(ElementwiseOp, DropoutFollowsTheCounter) {
  for (const int64_t n : kSizes) {
    for (const uint64_t first : {0ull, 3ull, (1ull << 34) + 1}) {
      const Tensor x = random({n}, 1), y = output({n});
      dropout(stream(), y, x, 0.25, kKey, first);
      auto want = values(x);
      for (int64_t i = 0; i < n; ++i) {
        want[i] *= uniform_at(kKey, first + static_cast<uint64_t>(i)) >= 0.25f ? 1 / 0.75 : 0;
      }
      testing::expect_close(values(y), want, rounding() + 2 * epsilon_of(accumulate()), 0);
    }
  }
}

TEST_P(ElementwiseOp, DropoutKeepsItsShareAndMayWriteOverItsInput) {
  const Tensor x = tensor_of(stream(), std::vector<double>(100000, 1), {100000}, dtype());
  const Tensor y = output({100000});
  dropout(stream(), y, x, 0.1, kKey, 0);
  const auto out = values(y);
  const auto zeros = std::count(out.begin(), out.end(), 0.0);
  EXPECT_NEAR(static_cast<double>(zeros), 10000, 5 * std::sqrt(100000 * .1 * .9));
  dropout(stream(), x, x, 0.1, kKey, 0);
  expect_same_bits(stream(), x, y);
}

TEST_P(ElementwiseOp, DropoutOfProbabilityZeroIsACopy) {
  const Tensor x = random({129}, 1), y = output({129});
  dropout(stream(), y, x, 0, kKey, 0);
  expect_same_bits(stream(), y, x);
}

TEST_P(ElementwiseOp, SigmoidGateIsCloseToFloat64) {
  for (const int64_t width : {1, 63, 64, 65, 129, 1000}) {
    for (const int64_t rows : {0, 1, 5}) {
      SCOPED_TRACE(concat(rows, " rows of ", width));
      const Tensor x = random({rows, width}, 1), gate = random({rows}, 2, 4);
      const Tensor dy = random({rows, width}, 3), y = output({rows, width});
      const Tensor dx = output({rows, width}), dgate = output({rows});
      sigmoid_gate_forward(stream(), y, x, gate);
      sigmoid_gate_backward(stream(), dx, dgate, dy, x, gate);

      const Tensor want_y = reference_output({rows, width});
      const Tensor want_dx = reference_output({rows, width}), want_dgate = reference_output({rows});
      sigmoid_gate_forward(reference(), want_y, exact(x), exact(gate));
      sigmoid_gate_backward(reference(), want_dx, want_dgate, exact(dy), exact(x), exact(gate));
      const double rel = rounding() + 16 * epsilon_of(accumulate());
      expect_close(y, want_y, rel, 0);
      expect_close(dx, want_dx, rel, 0);
      expect_close(dgate, want_dgate, rel,
                   static_cast<double>(width) * epsilon_of(accumulate()) / 4);

      sigmoid_gate_backward(stream(), dy, dgate, dy, x, gate);
      expect_same_bits(stream(), dy, dx);
    }
  }
}

TEST_P(ElementwiseOp, SigmoidGateSaturates) {
  const Tensor x = tensor_of(stream(), {3, 3, 3}, {3, 1}, dtype());
  const Tensor gate = tensor_of(stream(), {-1000, 0, 1000}, {3}, dtype()), y = output({3, 1});
  sigmoid_gate_forward(stream(), y, x, gate);
  testing::expect_close(values(y), {0, 1.5, 3}, 0, 0);
}

TEST_P(ElementwiseOp, RefusesWrongArguments) {
  const Tensor y = output({8}), x = random({8}, 1);
  EXPECT_THAT([&] { add(stream(), y, x, random({7}, 1)); },
              ThrowsMessage<Error>(HasSubstr("shapes [8] and [7]")));
  EXPECT_THAT([&] { fill(stream(), output({8}, DType::I32), 1); },
              ThrowsMessage<Error>(HasSubstr("y is i32")));
  EXPECT_THAT(
      [&] { ferry::accumulate(stream(), output({8}, DType::BF16), output({8}, DType::F32)); },
      ThrowsMessage<Error>(HasSubstr("f32 added to bf16")));
  EXPECT_THAT([&] { cast(stream(), y, random({9}, 1)); },
              ThrowsMessage<Error>(HasSubstr("shapes [8] and [9]")));
  EXPECT_THAT(
      [&] {
        fill_normal_rows(stream(), output({2, 4}), 1, kKey, 0, 3);
      },
      ThrowsMessage<Error>(HasSubstr("y has shape [2, 4], cut out of rows of 3")));
  EXPECT_THAT([&] { fill_normal_rows(stream(), y, 1, kKey, 0, 8); },
              ThrowsMessage<Error>(HasSubstr("y has shape [8], cut out of rows of 8")));
  EXPECT_THAT([&] { dropout(stream(), y, x, 1, kKey, 0); },
              ThrowsMessage<Error>(HasSubstr("probability 1")));
  EXPECT_THAT(
      [&] {
        sigmoid_gate_forward(stream(), output({2, 4}), random({2, 4}, 1), random({3}, 1));
      },
      ThrowsMessage<Error>(HasSubstr("gate has shape [3] for x [2, 4]")));
}

INSTANTIATE_TEST_SUITE_P(Devices, ElementwiseOp, device_cases(), case_name);

class ElementwiseGradients : public CpuTest {};

TEST_F(ElementwiseGradients, SigmoidGateMatchesDifferenceQuotients) {
  const DType f64 = DType::F64;
  const Tensor x = random_tensor(stream(), {3, 9}, f64, 1),
               gate = random_tensor(stream(), {3}, f64, 2);
  const Tensor dy = random_tensor(stream(), {3, 9}, f64, 3), y = poisoned(stream(), {3, 9}, f64);
  const Tensor dx = poisoned(stream(), {3, 9}, f64), dgate = poisoned(stream(), {3}, f64);
  const auto loss = [&] {
    sigmoid_gate_forward(stream(), y, x, gate);
    return dot(stream(), y, dy);
  };
  sigmoid_gate_backward(stream(), dx, dgate, dy, x, gate);
  expect_element_gradients(stream(), {"x", x, dx}, loss);
  expect_element_gradients(stream(), {"gate", gate, dgate}, loss);
}

}  // namespace
}  // namespace ferry::testing
