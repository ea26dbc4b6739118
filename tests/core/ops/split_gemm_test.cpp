#include "core/ops/split_gemm.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// T, D, E: single numbers, rows that vectors of 8 do and do not divide, no rows, a router's.
struct Sizes {
  int64_t tokens, width, outputs;
};
constexpr Sizes kSizes[] = {{1, 1, 1}, {5, 24, 8}, {7, 33, 5}, {0, 16, 8}, {130, 256, 64}};

class SplitGemm : public DeviceTest {
 protected:
  Tensor wide(const Shape& shape, uint64_t seed) {
    return random_tensor(stream(), shape, accumulate(), seed);
  }
  // Of sums of n products of numbers up to 1: half a rounding of each partial sum.
  double sum_error(int64_t n) const {
    return static_cast<double>(n + 4) * epsilon_of(accumulate());
  }
};

TEST_P(SplitGemm, ForwardIsAsPreciseAsWideProducts) {
  for (const auto [tokens, width, outputs] : kSizes) {
    SCOPED_TRACE(concat(tokens, " x ", width, " x ", outputs));
    const Tensor x = random({tokens, width}, 1), weight = wide({outputs, width}, 2);
    const Tensor y = output({tokens, outputs}, accumulate());
    split_gemm_forward(stream(), y, x, weight);
    const Tensor want = reference_output({tokens, outputs});
    split_gemm_forward(reference(), want, exact(x), exact(weight));
    expect_close(y, want, 0, sum_error(width));
  }
}

TEST_P(SplitGemm, GradientOfActivationsIsRoundedOnce) {
  for (const auto [tokens, width, outputs] : kSizes) {
    SCOPED_TRACE(concat(tokens, " x ", width, " x ", outputs));
    const Tensor dy = wide({tokens, outputs}, 3), weight = wide({outputs, width}, 4);
    const Tensor dx = output({tokens, width});
    split_gemm_dgrad(stream(), dx, dy, weight);
    const Tensor want = reference_output({tokens, width});
    split_gemm_dgrad(reference(), want, exact(dy), exact(weight));
    // With factors of 8 bits instead of 16 the second number would be 2^-8 * sqrt(outputs).
    const double of_factors = dtype() == DType::BF16 ? 0x1p-15 : 0;
    expect_close(dx, want, 0.5 * epsilon_of(dtype()),
                 sum_error(outputs) + of_factors * std::sqrt(static_cast<double>(outputs)));
  }
}

TEST_P(SplitGemm, GradientOfWeightsIsAddedAndAsPreciseAsWideProducts) {
  for (const auto [tokens, width, outputs] : kSizes) {
    SCOPED_TRACE(concat(tokens, " x ", width, " x ", outputs));
    const Tensor dy = wide({tokens, outputs}, 5), x = random({tokens, width}, 6);
    const Tensor dweight = wide({outputs, width}, 7), want = exact(dweight);
    split_gemm_wgrad(stream(), dweight, dy, x);
    split_gemm_wgrad(reference(), want, exact(dy), exact(x));
    expect_close(dweight, want, epsilon_of(accumulate()), sum_error(tokens));
  }
}

TEST_P(SplitGemm, EveryBitOfTheWideFactorCounts) {
  // 1 + 2^-23 has bits in the first and in the last part.
  const double precise = 1 + epsilon_of(accumulate());
  const Tensor x = tensor_of(stream(), {1}, {1, 1}, dtype());
  const Tensor wide = tensor_of(stream(), {precise}, {1, 1}, accumulate());
  const Tensor y = output({1, 1}, accumulate());
  split_gemm_forward(stream(), y, x, wide);
  EXPECT_EQ(read_back_as_double(stream(), y)[0], precise);
  const Tensor dweight = tensor_of(stream(), {0}, {1, 1}, accumulate());
  split_gemm_wgrad(stream(), dweight, wide, x);
  EXPECT_EQ(read_back_as_double(stream(), dweight)[0], precise);
}

TEST_P(SplitGemm, ShapesAndDtypesAreChecked) {
  const Tensor x = random({3, 4}, 1), weight = wide({2, 4}, 2), y = output({3, 2}, accumulate());
  EXPECT_THAT(
      [&] {
        split_gemm_forward(stream(), y, x, wide({2, 5}, 2));
      },
      ThrowsMessage<Error>(HasSubstr("weight is [2, 5] for activations of [3, 4]")));
  EXPECT_THAT(
      [&] {
        split_gemm_dgrad(stream(), x, wide({3, 3}, 1), weight);
      },
      ThrowsMessage<Error>(HasSubstr("[3, 3]")));
  EXPECT_THAT(
      [&] {
        split_gemm_forward(stream(), output({3, 2}, DType::I32), x, weight);
      },
      ThrowsMessage<Error>(HasSubstr("outputs i32")));
}

INSTANTIATE_TEST_SUITE_P(Devices, SplitGemm, device_cases(), case_name);

}  // namespace
}  // namespace ferry::testing
