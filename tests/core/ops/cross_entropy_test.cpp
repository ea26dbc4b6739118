#include "core/ops/cross_entropy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/devices.h"
#include "tests/support/gradients.h"

namespace ferry::testing {
namespace {

struct Expected {
  std::vector<double> token_loss;
  double sum = 0;
  std::vector<double> gradient;
};

Expected by_definition(const std::vector<double>& logits, const std::vector<int32_t>& labels,
                       const std::vector<float>& mask) {
  Expected expected;
  const size_t vocab = labels.empty() ? 0 : logits.size() / labels.size();
  for (size_t t = 0; t < labels.size(); ++t) {
    const double* row = logits.data() + t * vocab;
    const double largest = *std::max_element(row, row + vocab);
    double sum = 0;
    for (size_t i = 0; i < vocab; ++i) sum += std::exp(row[i] - largest);
    const double lse = largest + std::log(sum);
    expected.token_loss.push_back(mask[t] * (lse - row[labels[t]]));
    expected.sum += expected.token_loss.back();
    for (size_t i = 0; i < vocab; ++i)
      expected.gradient.push_back(
          mask[t] * (std::exp(row[i] - lse) - (static_cast<size_t>(labels[t]) == i ? 1 : 0)));
  }
  return expected;
}

class CrossEntropy : public DeviceTest {};

TEST_P(CrossEntropy, FollowsTheDefinition) {
  for (const int64_t num_tokens : {0, 1, 65}) {
    for (const int64_t vocab : {1, 63, 129, 1000}) {
      for (const bool with_gradient : {false, true}) {
        SCOPED_TRACE(concat(num_tokens, " tokens, vocabulary ", vocab));
        const Tensor logits = random({num_tokens, vocab}, 1, 8);
        const Tensor labels = random_ints(stream(), {num_tokens}, static_cast<int32_t>(vocab), 2);
        std::vector<float> weights;
        for (int64_t t = 0; t < num_tokens; ++t) weights.push_back(t % 3 == 2 ? 0.f : 1.f);
        const Tensor mask = from_host(stream(), "mask", weights, {num_tokens});
        const Tensor token_loss = output({num_tokens}, accumulate());
        const Tensor loss_sum = tensor_of(stream(), {0.5}, {1}, accumulate());
        const auto before = read_back_as_double(stream(), logits);
        const Expected expected =
            by_definition(before, read_back<int32_t>(stream(), labels), weights);
        cross_entropy(stream(), token_loss, loss_sum, logits, labels, mask, with_gradient);

        const double epsilon = epsilon_of(accumulate());
        testing::expect_close(read_back_as_double(stream(), token_loss), expected.token_loss,
                              4 * epsilon, 64 * epsilon);
        testing::expect_close(read_back_as_double(stream(), loss_sum), {expected.sum + 0.5},
                              static_cast<double>(num_tokens + 64) * epsilon, epsilon);
        if (with_gradient)
          testing::expect_close(read_back_as_double(stream(), logits), expected.gradient,
                                epsilon_of(dtype()) + 16 * epsilon, 64 * epsilon);
        else
          EXPECT_EQ(read_back_as_double(stream(), logits), before);
      }
    }
  }
}

// Neither overflow nor cancellation, however large the logits.
TEST_P(CrossEntropy, LargeLogits) {
  const Tensor logits = tensor_of(stream(), {1024, 1024, -1024, -1024, 1024, 0}, {2, 3}, dtype());
  const Tensor labels = ints({0, 0}, {2});
  const Tensor mask = from_host(stream(), "mask", std::vector<float>{1, 1}, {2});
  const Tensor token_loss = output({2}, accumulate());
  const Tensor loss_sum = zeros(stream(), {1}, accumulate());
  cross_entropy(stream(), token_loss, loss_sum, logits, labels, mask, true);
  testing::expect_close(read_back_as_double(stream(), token_loss), {std::log(2.0), 2048}, 1e-4, 0);
  testing::expect_close(read_back_as_double(stream(), logits), {-0.5, 0.5, 0, -1, 1, 0}, 1e-6, 0);
}

TEST_P(CrossEntropy, ShowsNonFiniteLogits) {
  const Tensor logits = tensor_of(stream(), {0, NAN, 1, 2}, {1, 4}, dtype());
  const Tensor mask = from_host(stream(), "mask", std::vector<float>{1}, {1});
  const Tensor loss_sum = zeros(stream(), {1}, accumulate());
  cross_entropy(stream(), output({1}, accumulate()), loss_sum, logits, ints({2}, {1}), mask, true);
  EXPECT_TRUE(std::isnan(read_back_as_double(stream(), loss_sum)[0]));
}

INSTANTIATE_TEST_SUITE_P(Devices, CrossEntropy, device_cases(), case_name);

class CrossEntropyChecks : public CpuTest {
 protected:
  Tensor zero(const Shape& shape, DType dtype = DType::F32) {
    return zeros(stream(), shape, dtype);
  }
};

TEST_F(CrossEntropyChecks, GradientIsTheDifferenceQuotient) {
  const Tensor logits = random_tensor(stream(), {5, 9}, DType::F64, 1, 3);
  const Tensor labels = random_ints(stream(), {5}, 9, 2);
  const Tensor mask = from_host(stream(), "mask", std::vector<float>{1, 0, 1, 0.5, 1}, {5});
  const auto run = [&](bool with_gradient) {
    const Tensor copy = zero({5, 9}, DType::F64), sum = zero({1}, DType::F64);
    stream().copy(copy, logits);
    cross_entropy(stream(), zero({5}, DType::F64), sum, copy, labels, mask, with_gradient);
    return std::pair(read_back<double>(stream(), sum)[0], copy);
  };
  expect_element_gradients(stream(), {"logits", logits, run(true).second},
                           [&] { return run(false).first; });
}

TEST_F(CrossEntropyChecks, NamesShapesDtypesAndLabels) {
  using ::testing::HasSubstr;
  const auto error_of = [&](const Tensor& loss, const Tensor& logits, const Tensor& labels,
                            const Tensor& mask) -> std::string {
    try {
      cross_entropy(stream(), loss, zero({1}), logits, labels, mask, false);
      stream().synchronize();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const Tensor logits = zero({2, 5}), labels = zero({2}, DType::I32), mask = zero({2});
  EXPECT_THAT(error_of(zero({3}), logits, labels, mask),
              HasSubstr("token_loss has shape [3], not [2]"));
  EXPECT_THAT(error_of(zero({2}), logits, zero({2}, DType::I64), mask),
              HasSubstr("labels are i64, mask is f32"));
  EXPECT_THAT(error_of(zero({2}, DType::BF16), zero({2, 5}, DType::BF16), labels, mask),
              HasSubstr("losses of bf16 logits are bf16 and f32"));
  EXPECT_THAT(error_of(zero({2}), zero({10}), labels, mask),
              HasSubstr("logits have shape [10], not [N, V]"));
  const Tensor bad = from_host(stream(), "labels", std::vector<int32_t>{1, 5}, {2});
  EXPECT_THAT(error_of(zero({2}), logits, bad, mask),
              HasSubstr("label 1 is 5, outside of a vocabulary of 5"));
}

}  // namespace
}  // namespace ferry::testing
