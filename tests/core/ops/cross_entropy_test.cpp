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
    expected.token_loss.push_back(mask[t] * (largest - row[labels[t]] + std::log(sum)));
    expected.sum += expected.token_loss.back();
    for (size_t i = 0; i < vocab; ++i)
      expected.gradient.push_back(mask[t] * (std::exp(row[i] - largest) / sum -
                                             (static_cast<size_t>(labels[t]) == i ? 1 : 0)));
  }
  return expected;
}

class CrossEntropy : public DeviceTest {
 protected:
  // `rounding`: what the loss may be off by, beside what its own size allows.
  void expect_definition(const Tensor& logits, const std::vector<int32_t>& labels,
                         const std::vector<float>& weights, bool with_gradient = true,
                         double rounding = 0) {
    const int64_t num_tokens = logits.dim(0);
    const Tensor mask = from_host(stream(), "mask", weights, {num_tokens});
    const Tensor token_loss = output({num_tokens}, accumulate());
    const Tensor loss_sum = tensor_of(stream(), {0.5}, {1}, accumulate());
    const auto before = read_back_as_double(stream(), logits);
    const Expected expected = by_definition(before, labels, weights);
    cross_entropy(stream(), token_loss, loss_sum, logits, ints(labels, {num_tokens}), mask,
                  with_gradient);

    const double epsilon = epsilon_of(accumulate()), tokens = static_cast<double>(num_tokens);
    testing::expect_close(read_back_as_double(stream(), token_loss), expected.token_loss,
                          4 * epsilon, 64 * epsilon + rounding);
    testing::expect_close(read_back_as_double(stream(), loss_sum), {expected.sum + 0.5},
                          (tokens + 64) * epsilon, epsilon + tokens * rounding);
    if (with_gradient)
      testing::expect_close(read_back_as_double(stream(), logits), expected.gradient,
                            epsilon_of(dtype()) + 16 * epsilon, 64 * epsilon);
    else
      EXPECT_EQ(read_back_as_double(stream(), logits), before);
  }
};

std::vector<float> some_masked(int64_t num_tokens) {
  std::vector<float> weights;
  for (int64_t t = 0; t < num_tokens; ++t) weights.push_back(t % 3 == 2 ? 0.f : 1.f);
  return weights;
}

TEST_P(CrossEntropy, FollowsTheDefinition) {
  for (const int64_t num_tokens : {0, 1, 65}) {
    for (const int64_t vocab : {1, 63, 129, 1000}) {
      for (const bool with_gradient : {false, true}) {
        SCOPED_TRACE(concat(num_tokens, " tokens, vocabulary ", vocab));
        const Tensor labels = random_ints(stream(), {num_tokens}, static_cast<int32_t>(vocab), 2);
        expect_definition(random({num_tokens, vocab}, 1, 8), read_back<int32_t>(stream(), labels),
                          some_masked(num_tokens), with_gradient);
      }
    }
  }
}

// Every column as label, with every distance of a row's beginning from a vector's: single elements
// before and after the vectors of a row, rows without a vector, rows of vectors alone.
TEST_P(CrossEntropy, AnyLabelOfRowsThatBeginAnywhere) {
  for (const int64_t vocab : {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 24, 33}) {
    SCOPED_TRACE(concat("vocabulary ", vocab));
    std::vector<int32_t> labels;
    for (int64_t t = 0; t < 8 * vocab; ++t) labels.push_back(static_cast<int32_t>(t / 8));
    expect_definition(random({8 * vocab, vocab}, 1, 8), labels, some_masked(8 * vocab));
  }
}

// So many columns that each thread of a GPU's block has several groups of vectors, the last of
// which is incomplete; labels at the ends of what threads have.
TEST_P(CrossEntropy, LongRows) {
  for (const int64_t vocab : {16384, 33333, 40001}) {
    SCOPED_TRACE(concat("vocabulary ", vocab));
    const auto end = static_cast<int32_t>(vocab);
    const std::vector<int32_t> labels{0,    1,    7,     8,     2047,    2048,    4095,    4096,
                                      4097, 8192, 16376, 16383, end - 9, end - 8, end - 2, end - 1};
    const auto num_tokens = static_cast<int64_t>(labels.size());
    expect_definition(random({num_tokens, vocab}, 1, 8), labels, some_masked(num_tokens));
  }
}

// The largest logit is subtracted before anything is rounded.
TEST_P(CrossEntropy, LogitsFarFromZero) {
  for (const double offset : {-1e4, -100.0, 100.0, 1e4}) {
    for (const int64_t vocab : {5, 129, 1000}) {
      SCOPED_TRACE(concat("vocabulary ", vocab, ", logits near ", offset));
      std::vector<double> values = random_values(16 * vocab, 1, 8);
      for (double& value : values) value += offset;
      const Tensor labels = random_ints(stream(), {16}, static_cast<int32_t>(vocab), 2);
      expect_definition(tensor_of(stream(), values, {16, vocab}, dtype()),
                        read_back<int32_t>(stream(), labels), some_masked(16), true,
                        std::abs(offset) * epsilon_of(accumulate()));
    }
  }
}

TEST_P(CrossEntropy, EqualLogits) {
  for (const double value : {0.0, 1.0, -3.0, 1e4, -1e4, 1e6}) {
    for (const int64_t vocab : {1, 3, 8, 1001}) {
      SCOPED_TRACE(concat("vocabulary ", vocab, ", logits ", value));
      const std::vector<double> values(static_cast<size_t>(9 * vocab), value);
      std::vector<int32_t> labels;
      for (int64_t t = 0; t < 9; ++t) labels.push_back(static_cast<int32_t>(t * (vocab - 1) / 8));
      expect_definition(tensor_of(stream(), values, {9, vocab}, dtype()), labels, some_masked(9),
                        true, std::abs(value) * epsilon_of(accumulate()));
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

// One rank's columns of logits, and what it computes. Padding is NaN, which may not count.
struct Part {
  int64_t first;
  int64_t count;
  Tensor logits, token_loss, loss_sum;
};

class CrossEntropyParts : public DeviceTest {
 protected:
  std::vector<Part> cut(const Tensor& logits, int64_t num_parts) {
    const int64_t num_tokens = logits.dim(0), vocab = logits.dim(1);
    const int64_t width = (vocab + num_parts - 1) / num_parts;
    const auto values = read_back_as_double(stream(), logits);
    std::vector<Part> parts;
    for (int64_t first = 0; first < num_parts * width; first += width) {
      std::vector<double> mine;
      for (int64_t t = 0; t < num_tokens; ++t)
        for (int64_t c = first; c < first + width; ++c)
          mine.push_back(c < vocab ? values[static_cast<size_t>(t * vocab + c)] : NAN);
      parts.push_back({first, std::clamp<int64_t>(vocab - first, 0, width),
                       tensor_of(stream(), mine, {num_tokens, width}, dtype()),
                       output({num_tokens}, accumulate()),
                       tensor_of(stream(), {0.5}, {1}, accumulate())});
    }
    return parts;
  }
  Tensor statistics_of(const std::vector<Part>& parts, const Tensor& labels) {
    const auto count = static_cast<int64_t>(parts.size());
    const int64_t num_tokens = labels.dim(0);
    const Tensor statistics = output({count, num_tokens, 3}, accumulate());
    for (int64_t i = 0; i < count; ++i) {
      const Part& part = parts[static_cast<size_t>(i)];
      cross_entropy_part(stream(), statistics.rows(i, i + 1).reshape({num_tokens, 3}), part.logits,
                         labels, part.first, part.count);
    }
    return statistics;
  }
  void run(const std::vector<Part>& parts, const Tensor& labels, const Tensor& mask,
           bool with_gradient) {
    const Tensor statistics = statistics_of(parts, labels);
    for (const Part& part : parts)
      cross_entropy_join(stream(), part.token_loss, part.loss_sum, part.logits, statistics, labels,
                         mask, part.first, part.count, with_gradient);
  }
  // The counted columns of all parts side by side; those of padding must be zero.
  std::vector<double> assembled(const std::vector<Part>& parts, int64_t vocab) {
    const int64_t num_tokens = parts[0].logits.dim(0);
    std::vector<double> whole(static_cast<size_t>(num_tokens * vocab), NAN);
    for (const Part& part : parts) {
      const int64_t width = part.logits.dim(1);
      const auto values = read_back_as_double(stream(), part.logits);
      for (int64_t t = 0; t < num_tokens; ++t)
        for (int64_t c = 0; c < width; ++c) {
          const double value = values[static_cast<size_t>(t * width + c)];
          if (c < part.count)
            whole[static_cast<size_t>(t * vocab + part.first + c)] = value;
          else
            EXPECT_EQ(value, 0) << "padding column " << c << " of row " << t;
        }
    }
    return whole;
  }
};

TEST_P(CrossEntropyParts, TogetherAreTheWhole) {
  for (const int64_t num_tokens : {0, 1, 65}) {
    for (const int64_t vocab : {1, 63, 129, 1000, 5001}) {
      for (const int64_t num_parts : {1, 3, 4}) {
        SCOPED_TRACE(concat(num_tokens, " tokens, vocabulary ", vocab, " in ", num_parts));
        const Tensor logits = random({num_tokens, vocab}, 1, 8);
        const Tensor labels = random_ints(stream(), {num_tokens}, static_cast<int32_t>(vocab), 2);
        const Tensor mask = from_host(stream(), "mask", some_masked(num_tokens), {num_tokens});
        const std::vector<Part> parts = cut(logits, num_parts);
        const Tensor token_loss = output({num_tokens}, accumulate());
        const Tensor loss_sum = tensor_of(stream(), {0.5}, {1}, accumulate());
        run(parts, labels, mask, true);
        cross_entropy(stream(), token_loss, loss_sum, logits, labels, mask, true);

        const double epsilon = epsilon_of(accumulate());
        for (const Part& part : parts) {
          testing::expect_close(stream(), part.token_loss, token_loss, 8 * epsilon, 64 * epsilon);
          testing::expect_close(stream(), part.loss_sum, loss_sum,
                                static_cast<double>(num_tokens + 64) * epsilon, epsilon);
          expect_same_bits(stream(), part.token_loss, parts[0].token_loss);
          expect_same_bits(stream(), part.loss_sum, parts[0].loss_sum);
        }
        testing::expect_close(assembled(parts, vocab), read_back_as_double(stream(), logits),
                              epsilon_of(dtype()) + 32 * epsilon, 128 * epsilon);
      }
    }
  }
}

// The label is in the first, the last or any other column of its part, whose rows begin anywhere.
TEST_P(CrossEntropyParts, AnyLabel) {
  for (const int64_t vocab : {2, 7, 20, 51}) {
    for (const int64_t num_parts : {2, 3}) {
      SCOPED_TRACE(concat("vocabulary ", vocab, " in ", num_parts));
      const int64_t num_tokens = 8 * vocab;
      std::vector<int32_t> labels;
      for (int64_t t = 0; t < num_tokens; ++t) labels.push_back(static_cast<int32_t>(t / 8));
      const std::vector<float> weights = some_masked(num_tokens);
      const Tensor logits = random({num_tokens, vocab}, 1, 8);
      const Expected expected =
          by_definition(read_back_as_double(stream(), logits), labels, weights);
      const std::vector<Part> parts = cut(logits, num_parts);
      run(parts, ints(labels, {num_tokens}), from_host(stream(), "mask", weights, {num_tokens}),
          true);

      const double epsilon = epsilon_of(accumulate());
      testing::expect_close(read_back_as_double(stream(), parts[0].token_loss), expected.token_loss,
                            8 * epsilon, 64 * epsilon);
      testing::expect_close(assembled(parts, vocab), expected.gradient,
                            epsilon_of(dtype()) + 32 * epsilon, 128 * epsilon);
    }
  }
}

TEST_P(CrossEntropyParts, WithoutGradientLeaveTheLogits) {
  const Tensor logits = random({5, 10}, 1, 8), labels = ints({0, 3, 9, 4, 4}, {5});
  const Tensor mask = from_host(stream(), "mask", std::vector<float>(5, 1), {5});
  const std::vector<Part> parts = cut(logits, 4), same = cut(logits, 4);
  run(parts, labels, mask, false);
  const Tensor token_loss = output({5}, accumulate());
  cross_entropy(stream(), token_loss, zeros(stream(), {1}, accumulate()), logits, labels, mask,
                false);
  for (size_t i = 0; i < parts.size(); ++i) {
    expect_same_bits(stream(), parts[i].logits, same[i].logits);
    testing::expect_close(stream(), parts[i].token_loss, token_loss, 8 * epsilon_of(accumulate()),
                          64 * epsilon_of(accumulate()));
  }
}

TEST_P(CrossEntropyParts, StatisticsAreLargestSumAndLabel) {
  const Tensor logits = tensor_of(stream(), {1, 3, 2, 0, -4, -4}, {2, 3}, dtype());
  const Tensor labels = ints({2, 1}, {2});
  const auto statistics = read_back_as_double(stream(), statistics_of(cut(logits, 2), labels));
  const double e = std::exp(-2.0), f = std::exp(-4.0);
  testing::expect_close(statistics, {3, 1 + e, 0, 0, 1 + f, -4, 2, 1, 2, -4, 1, 0}, 1e-5, 0);
  // Four parts of one column, the last of which is padding.
  const auto single = read_back_as_double(stream(), statistics_of(cut(logits, 4), labels));
  const double none = -INFINITY;
  EXPECT_EQ(single, std::vector<double>({1,    1, 0, 0,    1, 0,   //
                                         3,    1, 0, -4,   1, -4,  //
                                         2,    1, 2, -4,   1, 0,   //
                                         none, 0, 0, none, 0, 0}));
}

// Neither overflow nor cancellation, however far apart the parts are.
TEST_P(CrossEntropyParts, LargeLogits) {
  const Tensor logits = tensor_of(stream(), {1024, 1024, -1024, -1024, 1024, 0}, {2, 3}, dtype());
  const Tensor mask = from_host(stream(), "mask", std::vector<float>{1, 1}, {2});
  for (const int64_t num_parts : {2, 3, 4}) {
    const std::vector<Part> parts = cut(logits, num_parts);
    run(parts, ints({0, 0}, {2}), mask, true);
    for (const Part& part : parts)
      testing::expect_close(read_back_as_double(stream(), part.token_loss), {std::log(2.0), 2048},
                            1e-4, 0);
    testing::expect_close(assembled(parts, 3), {-0.5, 0.5, 0, -1, 1, 0}, 1e-6, 0);
  }
}

// The statistics are in natural units, whatever a device computes in.
TEST_P(CrossEntropyParts, EqualLogits) {
  for (const double value : {1.0, -3.0, 1e4, -1e4}) {
    SCOPED_TRACE(value);
    const int64_t vocab = 301;
    const std::vector<double> values(vocab, value);
    const Tensor logits = tensor_of(stream(), values, {1, vocab}, dtype());
    const Tensor labels = ints({200}, {1});
    const double exact = read_back_as_double(stream(), logits)[0];
    const std::vector<Part> parts = cut(logits, 2);
    const auto statistics = read_back_as_double(stream(), statistics_of(parts, labels));
    const double epsilon = epsilon_of(accumulate());
    testing::expect_close(statistics, {exact, 151, 0, exact, 150, exact}, 16 * epsilon, 0);
    EXPECT_EQ(statistics[0], exact);
    run(parts, labels, from_host(stream(), "mask", std::vector<float>{1}, {1}), true);
    testing::expect_close(read_back_as_double(stream(), parts[0].token_loss), {std::log(301.0)},
                          4 * epsilon, (64 + std::abs(value)) * epsilon);
    std::vector<double> gradient(vocab, 1 / 301.0);
    gradient[200] -= 1;
    testing::expect_close(assembled(parts, vocab), gradient, epsilon_of(dtype()) + 32 * epsilon, 0);
  }
}

TEST_P(CrossEntropyParts, ShowNonFiniteLogitsToAll) {
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    const Tensor logits = tensor_of(stream(), {0, bad, 1, 2}, {1, 4}, dtype());
    const Tensor mask = from_host(stream(), "mask", std::vector<float>{1}, {1});
    const std::vector<Part> parts = cut(logits, 2);
    run(parts, ints({2}, {1}), mask, true);
    for (const Part& part : parts)
      EXPECT_TRUE(std::isnan(read_back_as_double(stream(), part.loss_sum)[0]));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CrossEntropyParts, device_cases(), case_name);
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

TEST_F(CrossEntropyChecks, NamesShapesAndDtypesOfParts) {
  using ::testing::HasSubstr;
  const auto error_of = [&](const auto& call) -> std::string {
    try {
      call();
      stream().synchronize();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const Tensor logits = zero({2, 5}), labels = zero({2}, DType::I32), mask = zero({2});
  const auto part = [&](const Tensor& statistics, const Tensor& labels, int64_t first,
                        int64_t count) {
    return error_of(
        [&] { cross_entropy_part(stream(), statistics, logits, labels, first, count); });
  };
  const auto join = [&](const Tensor& statistics, const Tensor& mask, int64_t count) {
    return error_of([&] {
      cross_entropy_join(stream(), zero({2}), zero({1}), logits, statistics, labels, mask, 0, count,
                         false);
    });
  };
  EXPECT_EQ(part(zero({2, 3}), labels, 0, 5), "no error");
  EXPECT_THAT(part(zero({2, 2}), labels, 0, 5),
              HasSubstr("statistics has shape [2, 2], not [2, 3]"));
  EXPECT_THAT(part(zero({2, 3}, DType::F64), labels, 0, 5),
              HasSubstr("statistics of f32 logits are f64"));
  EXPECT_THAT(part(zero({2, 3}), zero({3}, DType::I32), 0, 5),
              HasSubstr("labels has shape [3], not [2]"));
  EXPECT_THAT(part(zero({2, 3}), zero({2}, DType::I64), 0, 5), HasSubstr("labels are i64"));
  EXPECT_THAT(part(zero({2, 3}), labels, 0, 6), HasSubstr("6 of 5 columns count, from 0"));
  EXPECT_THAT(part(zero({2, 3}), labels, -5, 5), HasSubstr("5 of 5 columns count, from -5"));
  EXPECT_EQ(join(zero({1, 2, 3}), mask, 5), "no error");
  EXPECT_THAT(join(zero({2, 3}), mask, 5),
              HasSubstr("statistics have shape [2, 3], not [parts, N, 3]"));
  EXPECT_THAT(join(zero({4, 3, 3}), mask, 5),
              HasSubstr("statistics has shape [4, 3, 3], not [4, 2, 3]"));
  EXPECT_THAT(join(zero({1, 2, 3}), zero({3}), 5), HasSubstr("mask has shape [3], not [2]"));
  EXPECT_THAT(join(zero({1, 2, 3}), mask, 6), HasSubstr("6 of 5 columns count, from 0"));
}

TEST_F(CrossEntropyChecks, RefusesLabelsThatNoPartHas) {
  const auto error_of = [&](int32_t label, int64_t count) -> std::string {
    auto own_stream = device().make_stream("fails");
    const Tensor logits = zeros(*own_stream, {2, 3}, DType::F32);
    const Tensor labels = from_host(*own_stream, "labels", std::vector<int32_t>{4, label}, {2});
    try {
      cross_entropy_part(*own_stream, zeros(*own_stream, {2, 3}, DType::F32), logits, labels, 3,
                         count);
      own_stream->synchronize();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of(6, 3), "no error");  // the next part may have it
  EXPECT_THAT(error_of(5, 2),
              ::testing::HasSubstr("label 1 is 5, outside of the vocabulary, of which columns [3, "
                                   "5) are here, then 1 of padding"));
  EXPECT_THAT(error_of(6, 2), ::testing::HasSubstr("label 1 is 6, outside"));
  EXPECT_THAT(error_of(-1, 3), ::testing::HasSubstr("label 1 is -1, outside"));
}

}  // namespace
}  // namespace ferry::testing
