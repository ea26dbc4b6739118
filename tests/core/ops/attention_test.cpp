#include "core/ops/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/core/ops/head_parts.h"
#include "tests/support/devices.h"
#include "tests/support/gradients.h"

namespace ferry::testing {
namespace {

struct Forward {
  std::vector<double> out, lse;
};

// Causal grouped-query attention, element by element from the definition.
Forward by_definition(const std::vector<double>& qkv, const AttentionDims& dims, double scale,
                      const AttentionDropout& dropout) {
  Forward result{std::vector<double>(static_cast<size_t>(dims.tokens() * dims.q_width())), {}};
  const int64_t d = dims.head_dim, width = dims.qkv_width();
  for (int64_t b = 0; b < dims.batch; ++b)
    for (int64_t h = 0; h < dims.heads; ++h)
      for (int64_t query = 0; query < dims.seq; ++query) {
        const int64_t kv = h / (dims.heads / dims.kv_heads);
        const double* q = qkv.data() + (b * dims.seq + query) * width + h * d;
        double* out = result.out.data() + (b * dims.seq + query) * dims.q_width() + h * d;
        std::vector<double> weights;
        double sum = 0;
        for (int64_t key = 0; key <= query; ++key) {
          const double* k = qkv.data() + (b * dims.seq + key) * width + (dims.heads + kv) * d;
          double score = 0;
          for (int64_t i = 0; i < d; ++i) score += q[i] * k[i];
          weights.push_back(std::exp(scale * score));
          sum += weights.back();
        }
        result.lse.push_back(std::log(sum));
        for (int64_t key = 0; key <= query; ++key) {
          const double* v =
              qkv.data() + (b * dims.seq + key) * width + (dims.heads + dims.kv_heads + kv) * d;
          const int64_t all_heads = dropout.all_heads > 0 ? dropout.all_heads : dims.heads;
          const int64_t head = (b + dropout.first_sequence) * all_heads + dropout.first_head + h;
          const auto index = static_cast<uint64_t>((head * dims.seq + query) * dims.seq + key);
          double factor = 1;
          if (dropout.probability > 0)
            factor = uniform_at(dropout.key, index) >= dropout.probability
                         ? 1 / (1 - dropout.probability)
                         : 0;
          for (int64_t i = 0; i < d; ++i) out[i] += factor * weights[key] / sum * v[i];
        }
      }
  return result;
}

std::string describe(const AttentionDims& dims) {
  return concat(dims.batch, " x ", dims.seq, ", ", dims.heads, "/", dims.kv_heads, " heads of ",
                dims.head_dim);
}

std::vector<AttentionDims> all_dims() {
  return {{1, 1, 1, 1, 1},    {2, 7, 4, 2, 8},     {1, 63, 2, 1, 16},
          {1, 64, 4, 4, 32},  {2, 65, 3, 1, 40},   {1, 127, 2, 2, 64},
          {1, 129, 4, 1, 32}, {1, 257, 1, 1, 128}, {0, 16, 2, 1, 32}};
}

class Attention : public DeviceTest {
 protected:
  void expect_forward(const AttentionDims& dims, double scale, const AttentionDropout& dropout) {
    SCOPED_TRACE(describe(dims));
    const Tensor qkv = random({dims.tokens(), dims.qkv_width()}, 1, 2);
    const Tensor out = output({dims.tokens(), dims.q_width()});
    const Tensor lse = output({dims.batch, dims.heads, dims.seq}, accumulate());
    attention_forward(stream(), out, lse, qkv, dims, scale, dropout);
    const Forward expected =
        by_definition(read_back_as_double(stream(), qkv), dims, scale, dropout);
    // Probabilities may be rounded to the activations' dtype; errors of a row average out.
    const double bound = 2 * epsilon_of(dtype()) + 64 * epsilon_of(accumulate());
    testing::expect_close(read_back_as_double(stream(), out), expected.out, bound, bound);
    testing::expect_close(read_back_as_double(stream(), lse), expected.lse, 0,
                          64 * epsilon_of(accumulate()));
  }
  // Against float64 on the CPU, with the same inputs (and its own out and lse).
  void expect_backward(const AttentionDims& dims, double scale, const AttentionDropout& dropout) {
    SCOPED_TRACE(describe(dims));
    const Tensor qkv = random({dims.tokens(), dims.qkv_width()}, 1, 2);
    const Tensor dout = random({dims.tokens(), dims.q_width()}, 2);
    const Tensor out = output({dims.tokens(), dims.q_width()});
    const Tensor lse = output({dims.batch, dims.heads, dims.seq}, accumulate());
    const Tensor dqkv = output({dims.tokens(), dims.qkv_width()});
    attention_forward(stream(), out, lse, qkv, dims, scale, dropout);
    attention_backward(stream(), dqkv, dout, out, lse, qkv, dims, scale, dropout);
    const Tensor any_order = output({dims.tokens(), dims.qkv_width()});
    attention_backward(stream(), any_order, dout, out, lse, qkv, dims, scale, dropout, false);

    const Tensor expected_out = reference_output({dims.tokens(), dims.q_width()});
    const Tensor expected_lse = reference_output({dims.batch, dims.heads, dims.seq});
    const Tensor expected = reference_output({dims.tokens(), dims.qkv_width()});
    const Tensor exact_qkv = exact(qkv);
    attention_forward(reference(), expected_out, expected_lse, exact_qkv, dims, scale, dropout);
    attention_backward(reference(), expected, exact(dout), expected_out, expected_lse, exact_qkv,
                       dims, scale, dropout);
    const double bound = 6 * epsilon_of(dtype()) + 256 * epsilon_of(accumulate());
    expect_close(dqkv, expected, bound, bound);
    expect_close(any_order, expected, bound, bound);
  }
};

TEST_P(Attention, ForwardFollowsTheDefinition) {
  for (const AttentionDims& dims : all_dims())
    expect_forward(dims, 1 / std::sqrt(static_cast<double>(dims.head_dim)), {});
}

TEST_P(Attention, ForwardWithDropoutFollowsTheDefinition) {
  expect_forward({2, 65, 4, 2, 16}, 0.25, {0.3, {7, 8, 9}, 5});
  expect_forward({2, 65, 4, 2, 16}, 0.25, {0.3, {7, 8, 9}, 5, 8, 16});
}

TEST_P(Attention, BackwardAgreesWithFloat64) {
  for (const AttentionDims& dims : all_dims())
    expect_backward(dims, 1 / std::sqrt(static_cast<double>(dims.head_dim)), {});
}

TEST_P(Attention, BackwardWithDropoutAgreesWithFloat64) {
  expect_backward({2, 65, 4, 2, 16}, 0.25, {0.3, {7, 8, 9}, 5});
}

TEST_P(Attention, IsCausal) {
  const AttentionDims dims{1, 130, 2, 1, 32};
  const Tensor qkv = random({dims.tokens(), dims.qkv_width()}, 1);
  const Tensor out = output({dims.tokens(), dims.q_width()});
  const Tensor after = output({dims.tokens(), dims.q_width()});
  const Tensor lse = output({dims.batch, dims.heads, dims.seq}, accumulate());
  attention_forward(stream(), out, lse, qkv, dims, 0.2, {});
  stream().copy(qkv.rows(70, 130), random({60, dims.qkv_width()}, 2));
  attention_forward(stream(), after, lse, qkv, dims, 0.2, {});
  expect_same_bits(stream(), after.rows(0, 70), out.rows(0, 70));
  EXPECT_NE(read_back_as_double(stream(), after.rows(70, 71)),
            read_back_as_double(stream(), out.rows(70, 71)));
}

// A sequence's dropout depends on its number in the global batch, not on who computes it.
TEST_P(Attention, DropoutFollowsTheSequence) {
  const AttentionDims both{2, 33, 2, 1, 16}, one{1, 33, 2, 1, 16};
  const Tensor qkv = random({66, both.qkv_width()}, 1);
  const Tensor out = output({66, both.q_width()}), alone = output({33, one.q_width()});
  const RandomKey key{1, 2, 3};
  attention_forward(stream(), out, output({2, 2, 33}, accumulate()), qkv, both, 0.25,
                    {0.5, key, 10});
  attention_forward(stream(), alone, output({1, 2, 33}, accumulate()), qkv.rows(33, 66), one, 0.25,
                    {0.5, key, 11});
  expect_same_bits(stream(), alone, out.rows(33, 66));
}

// A head's dropout depends on its number among all heads, not on who computes it.
TEST_P(Attention, DropoutFollowsTheHead) {
  const AttentionDims dims{2, 33, 8, 4, 16};
  const int64_t parts = 2;
  const RandomKey key{1, 2, 3};
  struct Run {
    Tensor out, dqkv;
  };
  const auto run = [&](const Tensor& qkv, const Tensor& dout, const AttentionDims& dims,
                       const AttentionDropout& dropout) {
    const Tensor out = output({dims.tokens(), dims.q_width()});
    const Tensor lse = output({dims.batch, dims.heads, dims.seq}, accumulate());
    const Tensor dqkv = output({dims.tokens(), dims.qkv_width()});
    attention_forward(stream(), out, lse, qkv, dims, 0.25, dropout);
    attention_backward(stream(), dqkv, dout, out, lse, qkv, dims, 0.25, dropout);
    return Run{out, dqkv};
  };
  const Tensor qkv = random({dims.tokens(), dims.qkv_width()}, 1);
  const Tensor dout = random({dims.tokens(), dims.q_width()}, 2);
  const Run whole = run(qkv, dout, dims, {0.5, key, 10});
  for (int64_t part = 0; part < parts; ++part) {
    SCOPED_TRACE(part);
    const AttentionDims mine = part_of(dims, parts);
    const std::vector<ColumnRange> heads{{part * mine.q_width(), mine.q_width()}};
    const auto columns = qkv_columns(dims, part, parts);
    const Run alone = run(cut_columns(stream(), qkv, columns), cut_columns(stream(), dout, heads),
                          mine, {0.5, key, 10, part * mine.heads, dims.heads});
    expect_same_bits(stream(), alone.out, cut_columns(stream(), whole.out, heads));
    expect_same_bits(stream(), alone.dqkv, cut_columns(stream(), whole.dqkv, columns));
  }
}

TEST_P(Attention, LargeScoresDoNotOverflow) {
  const AttentionDims dims{1, 4, 1, 1, 8};
  const Tensor qkv = random({4, 24}, 1, 64);
  const Tensor out = output({4, 8}), lse = output({1, 1, 4}, accumulate());
  attention_forward(stream(), out, lse, qkv, dims, 1, {});
  for (const double value : read_back_as_double(stream(), out)) EXPECT_TRUE(std::isfinite(value));
  for (const double value : read_back_as_double(stream(), lse)) EXPECT_TRUE(std::isfinite(value));
}

INSTANTIATE_TEST_SUITE_P(Devices, Attention, device_cases(), case_name);

class AttentionOnCpu : public CpuTest {};

TEST_F(AttentionOnCpu, BackwardIsTheGradient) {
  const AttentionDims dims{2, 5, 4, 2, 3};
  for (const double probability : {0.0, 0.4}) {
    const AttentionDropout dropout{probability, {3, 4, 5}, 1};
    const Tensor qkv = random_tensor(stream(), {dims.tokens(), dims.qkv_width()}, DType::F64, 1);
    const Tensor dout = random_tensor(stream(), {dims.tokens(), dims.q_width()}, DType::F64, 2);
    const Tensor out = poisoned(stream(), {dims.tokens(), dims.q_width()}, DType::F64);
    const Tensor lse = poisoned(stream(), {2, 4, 5}, DType::F64);
    const Tensor dqkv = poisoned(stream(), {dims.tokens(), dims.qkv_width()}, DType::F64);
    const auto loss = [&] {
      attention_forward(stream(), out, lse, qkv, dims, 0.7, dropout);
      return dot(stream(), out, dout);
    };
    loss();
    attention_backward(stream(), dqkv, dout, out, lse, qkv, dims, 0.7, dropout);
    expect_element_gradients(stream(), {"qkv", qkv, dqkv}, loss);
  }
}

TEST_F(AttentionOnCpu, NamesShapesDtypesAndDims) {
  using ::testing::HasSubstr;
  const auto zero = [&](const Shape& shape, DType dtype) { return zeros(stream(), shape, dtype); };
  const auto error_of = [&](const AttentionDims& dims, const Tensor& out, const Tensor& qkv,
                            const AttentionDropout& dropout = {}) -> std::string {
    try {
      attention_forward(stream(), out, zero({1, 4, 3}, DType::F32), qkv, dims, 1, dropout);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const AttentionDims dims{1, 3, 4, 2, 2};
  const Tensor out = zero({3, 8}, DType::F32), qkv = zero({3, 16}, DType::F32);
  EXPECT_EQ(error_of(dims, out, qkv), "no error");
  EXPECT_THAT(error_of(dims, out, zero({3, 15}, DType::F32)),
              HasSubstr("qkv has shape [3, 15], not [3, 16]"));
  EXPECT_THAT(error_of(dims, zero({3, 8}, DType::BF16), qkv),
              HasSubstr("out is bf16, lse is f32, qkv is f32"));
  EXPECT_THAT(error_of({1, 3, 4, 3, 2}, out, qkv),
              HasSubstr("4 query heads cannot share 3 key heads"));
  EXPECT_THAT(error_of({1, 0, 4, 2, 2}, out, qkv), HasSubstr("batch 1, seq 0, heads 4"));
  EXPECT_THAT(error_of(dims, out, qkv, {1}), HasSubstr("dropout probability 1"));
  EXPECT_EQ(error_of(dims, out, qkv, {0.5, {}, 0, 4, 8}), "no error");
  EXPECT_THAT(error_of(dims, out, qkv, {0.5, {}, 0, 5, 8}),
              HasSubstr("dropout of 4 heads from 5 of 8"));
  EXPECT_THAT(error_of(dims, out, qkv, {0.5, {}, 0, 4}),
              HasSubstr("dropout of 4 heads from 4 of 0"));
}

}  // namespace
}  // namespace ferry::testing
