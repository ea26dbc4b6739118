#include "layers/attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/layers/over_ranks.h"
#include "tests/support/devices.h"
#include "tests/support/micro_batch.h"

namespace ferry::testing {
namespace {

AttentionConfig small(int64_t kv_heads, std::optional<QkNormKind> qk_norm = std::nullopt) {
  AttentionConfig config;
  config.hidden = 10;
  config.heads = 4;
  config.kv_heads = kv_heads;
  config.head_dim = 6;
  config.qk_norm = qk_norm;
  config.init_std = 0.02;
  config.output_init_std = 0.01;
  config.dtype = DType::F64;
  return config;
}

ModuleRun two_sequences(int64_t seq) {
  ModuleRun run;
  run.batch.batch = 2;
  run.batch.seq = seq;
  run.batch.first_token = 6 * seq;
  run.key = {5, 2, 0};
  return run;
}

class AttentionTest : public CpuTest {
 protected:
  std::unique_ptr<Attention> make(const AttentionConfig& config) {
    auto attention = std::make_unique<Attention>(
        "layers/0/attention", config,
        std::make_shared<RopeCache>(config.head_dim, 100.0, config.dtype));
    allocate_parameters(stream(), *attention, 1);
    return attention;
  }
  Tensor input(int64_t tokens, uint64_t seed = 2) {
    return random_tensor(stream(), {tokens, 10}, DType::F64, seed);
  }
};

TEST_F(AttentionTest, DescribesItsParameters) {
  const auto listed = [&](std::optional<QkNormKind> kind) {
    std::vector<std::string> names;
    make(small(2, kind))->visit([&](Parameter& parameter) {
      names.push_back(concat(parameter.name.substr(19), parameter.shape, parameter.decay ? "" : "!",
                             parameter.init.std));
    });
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(listed({}), (Names{"qkv/weight[48, 10]0.02", "proj/weight[10, 24]0.01"}));
  EXPECT_EQ(listed(QkNormKind::Head), (Names{"qkv/weight[48, 10]0.02", "q_norm/weight[6]!0",
                                             "k_norm/weight[6]!0", "proj/weight[10, 24]0.01"}));
  EXPECT_EQ(listed(QkNormKind::Full), (Names{"qkv/weight[48, 10]0.02", "q_norm/weight[24]!0",
                                             "k_norm/weight[12]!0", "proj/weight[10, 24]0.01"}));
}

TEST_F(AttentionTest, GradientsMatchDifferenceQuotients) {
  for (const int64_t kv_heads : {1, 2, 4}) {
    for (const auto kind : {std::optional<QkNormKind>(), std::optional(QkNormKind::Head),
                            std::optional(QkNormKind::Full)}) {
      SCOPED_TRACE(concat(kv_heads, " kv heads, norm ", kind ? static_cast<int>(*kind) : -1));
      const auto attention = make(small(kv_heads, kind));
      expect_gradients(stream(), *attention, input(14), two_sequences(7));
    }
  }
}

TEST_F(AttentionTest, GradientsWithDropoutMatchDifferenceQuotients) {
  AttentionConfig config = small(2, QkNormKind::Head);
  config.dropout = 0.3;
  const auto attention = make(config);
  expect_gradients(stream(), *attention, input(14), two_sequences(7));
}

// The formula, with loops: projections, rotation of halves, softmax over earlier tokens.
TEST_F(AttentionTest, IsTheFormula) {
  const int64_t seq = 5, heads = 4, kv_heads = 2, dim = 6, half = 3, hidden = 10;
  const auto attention = make(small(kv_heads));
  std::vector<std::vector<double>> weights;
  attention->visit(
      [&](Parameter& p) { weights.push_back(read_back_as_double(stream(), p.value)); });
  const Tensor x_tensor = input(2 * seq);
  const auto x = read_back_as_double(stream(), x_tensor);

  const auto head_of = [&](int64_t token, int64_t head, bool rotate) {
    std::vector<double> v(static_cast<size_t>(dim), 0.0), r = v;
    for (int64_t d = 0; d < dim; ++d)
      for (int64_t i = 0; i < hidden; ++i)
        v[d] += x[token * hidden + i] * weights[0][(head * dim + d) * hidden + i];
    if (!rotate) return v;
    for (int64_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(token % seq) * std::pow(100.0, -2.0 * static_cast<double>(i) / dim);
      r[i] = v[i] * std::cos(angle) - v[i + half] * std::sin(angle);
      r[i + half] = v[i + half] * std::cos(angle) + v[i] * std::sin(angle);
    }
    return r;
  };
  std::vector<double> want;
  for (int64_t t = 0; t < 2 * seq; ++t) {
    std::vector<double> attended;
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t kv = h / (heads / kv_heads);
      const std::vector<double> q = head_of(t, h, true);
      std::vector<double> out(static_cast<size_t>(dim), 0.0);
      double sum = 0;
      for (int64_t s = t / seq * seq; s <= t; ++s) {
        const double p =
            std::exp(dot(q, head_of(s, heads + kv, true)) / std::sqrt(static_cast<double>(dim)));
        const std::vector<double> v = head_of(s, heads + kv_heads + kv, false);
        for (int64_t d = 0; d < dim; ++d) out[d] += p * v[d];
        sum += p;
      }
      for (const double value : out) attended.push_back(value / sum);
    }
    for (int64_t o = 0; o < hidden; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < heads * dim; ++i)
        sum += attended[i] * weights[1][o * heads * dim + i];
      want.push_back(sum);
    }
  }
  const Outcome outcome =
      run_micro_batch(stream(), *attention, x_tensor, x_tensor, two_sequences(seq));
  testing::expect_close(outcome.tensors.at("y"), want, 1e-11, 1e-12);
}

TEST_F(AttentionTest, DropoutIsOfTrainingAndOfTheStep) {
  AttentionConfig config = small(2);
  const auto plain = make(config);
  config.dropout = 0.3;
  const auto attention = make(config);
  const Tensor x = input(14);
  const auto y = [&](Attention& module, uint32_t step, bool training) {
    ModuleRun run = two_sequences(7);
    run.key.step = step;
    run.training = training;
    return run_micro_batch(stream(), module, x, x, run).tensors.at("y");
  };
  EXPECT_EQ(y(*attention, 1, false), y(*plain, 1, false));
  EXPECT_EQ(y(*attention, 1, true), y(*attention, 1, true));
  EXPECT_NE(y(*attention, 1, true), y(*attention, 2, true));
  EXPECT_NE(y(*attention, 1, true), y(*attention, 1, false));
}

TEST_F(AttentionTest, DropoutOfASequenceDoesNotDependOnTheMicroBatch) {
  AttentionConfig config = small(2);
  config.dropout = 0.3;
  const auto attention = make(config);
  const Tensor x = input(14);
  const auto whole = run_micro_batch(stream(), *attention, x, x, two_sequences(7)).tensors.at("y");
  ModuleRun second = two_sequences(7);
  second.batch.batch = 1;
  second.batch.first_token += 7;
  const Tensor part = x.rows(7, 14);
  testing::expect_close(
      run_micro_batch(stream(), *attention, part, part, second).tensors.at("y"),
      std::vector<double>(whole.begin() + static_cast<std::ptrdiff_t>(whole.size() / 2),
                          whole.end()),
      1e-13, 1e-14);
}

TEST_F(AttentionTest, ChangesOfSequenceLengthAreAllowed) {
  const auto attention = make(small(2));
  const Tensor x = input(14);
  const auto first = run_micro_batch(stream(), *attention, x, x, two_sequences(7));
  const Tensor shorter = input(8);
  run_micro_batch(stream(), *attention, shorter, shorter, two_sequences(4));
  expect_same(run_micro_batch(stream(), *attention, x, x, two_sequences(7)), first);
}

OverRanks over_ranks(const AttentionConfig& config) {
  OverRanks test;
  test.make = [config](const TensorParallel& tensor) {
    return std::make_unique<Attention>(
        "layers/0/attention", config,
        std::make_shared<RopeCache>(config.head_dim, 100.0, config.dtype), tensor);
  };
  test.run = [](Stream&) { return two_sequences(6); };
  test.x = test.dy = {12, 10};
  return test;
}

TEST_F(AttentionTest, RanksGiveWhatOneRankGives) {
  for (const double dropout : {0.0, 0.3}) {
    for (const auto kind : {std::optional<QkNormKind>(), std::optional(QkNormKind::Head),
                            std::optional(QkNormKind::Full)}) {
      SCOPED_TRACE(concat("dropout ", dropout, ", norm ", kind ? static_cast<int>(*kind) : -1));
      AttentionConfig config = small(4, kind);
      config.dropout = dropout;
      expect_same_over_ranks(over_ranks(config));
    }
  }
}

TEST_F(AttentionTest, RanksCanShareGroupedKeys) {
  OverRanks test = over_ranks(small(2, QkNormKind::Full));
  test.sizes = {2};
  expect_same_over_ranks(test);
}

TEST_F(AttentionTest, DescribesItsParts) {
  const auto listed = [&](std::optional<QkNormKind> kind) {
    std::vector<std::string> names;
    Attention attention("layers/0/attention", small(2, kind), nullptr, {nullptr, 1, 2, true});
    attention.visit([&](Parameter& parameter) {
      names.push_back(concat(parameter.name.substr(19), parameter.shape, " of ",
                             parameter.global_shape(),
                             parameter.axis == ReduceAxis::Stage ? " stage" : ""));
    });
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(listed(QkNormKind::Head),
            (Names{"qkv/weight[24, 10] of [48, 10]", "q_norm/weight[6] of [6] stage",
                   "k_norm/weight[6] of [6] stage", "proj/weight[10, 12] of [10, 24]"}));
  EXPECT_EQ(listed(QkNormKind::Full),
            (Names{"qkv/weight[24, 10] of [48, 10]", "q_norm/weight[12] of [24]",
                   "k_norm/weight[6] of [12]", "proj/weight[10, 12] of [10, 24]"}));
}

TEST_F(AttentionTest, RefusesHeadsThatRanksDoNotDivide) {
  try {
    Attention("layers/0/attention", small(2), nullptr, {nullptr, 0, 4, false});
    FAIL() << "2 kv heads on 4 ranks";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what())
                  .find("layers/0/attention: 4 tensor-parallel ranks do not divide 4 heads and 2 "
                        "kv heads"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace ferry::testing
