#include "core/ops/qk_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/devices.h"
#include "tests/support/gradients.h"

namespace ferry::testing {
namespace {

constexpr double kEps = 1e-5;
constexpr QkNormKind kKinds[] = {QkNormKind::Head, QkNormKind::Full};

// Tensors of one problem, on any stream.
struct Problem {
  AttentionDims dims;
  QkNormKind kind;
  Tensor x, q_weight, k_weight, y, rstd, dy, dx, dq_weight, dk_weight;
};

Problem make_problem(Stream& stream, const AttentionDims& dims, QkNormKind kind, DType dtype) {
  const bool per_head = kind == QkNormKind::Head;
  const Shape rows{dims.tokens(), dims.qkv_width()};
  const Shape q{per_head ? dims.head_dim : dims.q_width()};
  const Shape k{per_head ? dims.head_dim : dims.kv_width()};
  const DType wide = accumulate_dtype(dtype);
  return {dims,
          kind,
          random_tensor(stream, rows, dtype, 1, 2),
          random_tensor(stream, q, dtype, 2),
          random_tensor(stream, k, dtype, 3),
          poisoned(stream, rows, dtype),
          poisoned(stream, {dims.tokens(), per_head ? dims.heads + dims.kv_heads : 2}, wide),
          random_tensor(stream, rows, dtype, 4),
          poisoned(stream, rows, dtype),
          random_tensor(stream, q, wide, 5),
          random_tensor(stream, k, wide, 6)};
}

void run_forward(Stream& stream, const Problem& p) {
  qk_norm_forward(stream, p.y, p.rstd, p.x, p.q_weight, p.k_weight, p.dims, p.kind, kEps);
}
void run_backward(Stream& stream, const Problem& p) {
  qk_norm_backward(stream, p.dx, p.dq_weight, p.dk_weight, p.dy, p.x, p.rstd, p.q_weight,
                   p.k_weight, p.dims, p.kind);
}

class QkNorm : public DeviceTest {
 protected:
  // The same problem in float64 with exactly the same inputs.
  Problem exact_problem(const Problem& p) {
    Problem same = make_problem(reference(), p.dims, p.kind, DType::F64);
    same.x = exact(p.x);
    same.q_weight = exact(p.q_weight);
    same.k_weight = exact(p.k_weight);
    same.dy = exact(p.dy);
    same.dq_weight = exact(p.dq_weight);
    same.dk_weight = exact(p.dk_weight);
    return same;
  }
};

TEST_P(QkNorm, AgreesWithFloat64) {
  const AttentionDims all_dims[] = {
      {1, 1, 1, 1, 1}, {2, 5, 4, 2, 6}, {1, 65, 3, 1, 63}, {1, 129, 2, 2, 128}, {0, 4, 2, 1, 8}};
  for (const AttentionDims& dims : all_dims) {
    for (const QkNormKind kind : kKinds) {
      SCOPED_TRACE(concat(dims.batch, " x ", dims.seq, ", ", dims.heads, "/", dims.kv_heads, " x ",
                          dims.head_dim, kind == QkNormKind::Head ? " per head" : " full"));
      const Problem p = make_problem(stream(), dims, kind, dtype());
      const Problem expected = exact_problem(p);
      run_forward(stream(), p);
      run_forward(reference(), expected);
      run_backward(stream(), p);
      run_backward(reference(), expected);
      const double rel = epsilon_of(dtype()), wide = epsilon_of(accumulate());
      const double width = static_cast<double>(p.dims.q_width());
      expect_close(p.rstd, expected.rstd, width * wide, 0);
      expect_close(p.y, expected.y, rel, width * wide);
      // With a single element the gradient nearly cancels, at the size of rstd.
      expect_close(p.dx, expected.dx, rel, 256 * (width + 8) * wide);
      const double rows = static_cast<double>(dims.tokens() * dims.heads);
      expect_close(p.dq_weight, expected.dq_weight, 0, 4 * (rows + width) * wide);
      expect_close(p.dk_weight, expected.dk_weight, 0, 4 * (rows + width) * wide);
    }
  }
}

TEST_P(QkNorm, CopiesValues) {
  const AttentionDims dims{1, 3, 2, 1, 8};
  for (const QkNormKind kind : kKinds) {
    const Problem p = make_problem(stream(), dims, kind, dtype());
    run_forward(stream(), p);
    run_backward(stream(), p);
    const auto x = read_back_as_double(stream(), p.x), y = read_back_as_double(stream(), p.y);
    const auto dy = read_back_as_double(stream(), p.dy), dx = read_back_as_double(stream(), p.dx);
    for (int64_t t = 0; t < dims.tokens(); ++t)
      for (int64_t i = dims.q_width() + dims.kv_width(); i < dims.qkv_width(); ++i) {
        EXPECT_EQ(y[t * dims.qkv_width() + i], x[t * dims.qkv_width() + i]);
        EXPECT_EQ(dx[t * dims.qkv_width() + i], dy[t * dims.qkv_width() + i]);
      }
  }
}

TEST_P(QkNorm, BackwardInPlaceGivesTheSameBits) {
  for (const QkNormKind kind : kKinds) {
    Problem p = make_problem(stream(), {2, 17, 4, 2, 32}, kind, dtype());
    run_forward(stream(), p);
    run_backward(stream(), p);
    const Tensor dx = p.dx;
    p.dx = p.dy;
    run_backward(stream(), p);
    expect_same_bits(stream(), p.dy, dx);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, QkNorm, device_cases(), case_name);

class QkNormOnCpu : public CpuTest {};

TEST_F(QkNormOnCpu, NormalisesToTheWeight) {
  const Problem p = make_problem(stream(), {1, 1, 1, 1, 2}, QkNormKind::Head, DType::F64);
  const Tensor x = tensor_of(stream(), {3, 4, 0, 2, 7, 8}, {1, 6}, DType::F64);
  const Tensor weight = tensor_of(stream(), {1, 10}, {2}, DType::F64);
  qk_norm_forward(stream(), p.y, p.rstd, x, weight, weight, p.dims, p.kind, 0);
  const double q = std::sqrt(12.5), k = std::sqrt(2.0);
  expect_close(read_back_as_double(stream(), p.y), {3 / q, 40 / q, 0, 20 / k, 7, 8}, 1e-14, 0);
  expect_close(read_back_as_double(stream(), p.rstd), {1 / q, 1 / k}, 1e-14, 0);
}

TEST_F(QkNormOnCpu, BackwardIsTheGradient) {
  for (const QkNormKind kind : kKinds) {
    const Problem p = make_problem(stream(), {1, 3, 4, 2, 3}, kind, DType::F64);
    stream().zero(p.dq_weight);
    stream().zero(p.dk_weight);
    run_forward(stream(), p);
    run_backward(stream(), p);
    const auto loss = [&] {
      run_forward(stream(), p);
      return dot(stream(), p.y, p.dy);
    };
    expect_element_gradients(stream(), {"x", p.x, p.dx}, loss);
    expect_element_gradients(stream(), {"q_weight", p.q_weight, p.dq_weight}, loss);
    expect_element_gradients(stream(), {"k_weight", p.k_weight, p.dk_weight}, loss);
  }
}

TEST_F(QkNormOnCpu, NamesShapesAndDtypes) {
  using ::testing::HasSubstr;
  const auto error_of = [&](const Problem& p) -> std::string {
    try {
      run_forward(stream(), p);
      run_backward(stream(), p);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const Problem good = make_problem(stream(), {1, 3, 4, 2, 3}, QkNormKind::Head, DType::F32);
  EXPECT_EQ(error_of(good), "no error");
  Problem bad = good;
  bad.kind = QkNormKind::Full;
  EXPECT_THAT(error_of(bad), HasSubstr("rstd has shape [3, 6], not [3, 2]"));
  bad = good;
  bad.k_weight = zeros(stream(), {4}, DType::F32);
  EXPECT_THAT(error_of(bad), HasSubstr("k_weight has shape [4], not [3]"));
  bad = good;
  bad.rstd = zeros(stream(), {3, 6}, DType::F64);
  EXPECT_THAT(error_of(bad), HasSubstr("x is f32, y is f32, weights are f32 and f32, rstd is f64"));
  bad = good;
  bad.dq_weight = zeros(stream(), {3}, DType::BF16);
  EXPECT_THAT(error_of(bad), HasSubstr("dweights are bf16 and f32"));
}

}  // namespace
}  // namespace ferry::testing
