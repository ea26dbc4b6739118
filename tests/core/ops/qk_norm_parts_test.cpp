#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "core/ops/qk_norm.h"
#include "tests/core/ops/head_parts.h"
#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

constexpr double kEps = 1e-5;

// What one rank has: its heads of x, dy and the weights, and its outputs.
struct Part {
  AttentionDims dims;
  Tensor x, dy, q_weight, k_weight, y, rstd, dx, dq_weight, dk_weight;
};

Part make_part(Stream& stream, const AttentionDims& dims, DType dtype) {
  const Shape rows{dims.tokens(), dims.qkv_width()};
  const DType wide = accumulate_dtype(dtype);
  return {dims,
          random_tensor(stream, rows, dtype, 1, 2),
          random_tensor(stream, rows, dtype, 2),
          random_tensor(stream, {dims.q_width()}, dtype, 3),
          random_tensor(stream, {dims.kv_width()}, dtype, 4),
          poisoned(stream, rows, dtype),
          poisoned(stream, {dims.tokens(), 2}, wide),
          poisoned(stream, rows, dtype),
          random_tensor(stream, {dims.q_width()}, wide, 5),
          random_tensor(stream, {dims.kv_width()}, wide, 6)};
}

// Part `idx` of `parts` of the whole's inputs and of the gradients that are added to.
Part cut(Stream& stream, const Part& whole, int64_t idx, int64_t parts) {
  Part part = make_part(stream, part_of(whole.dims, parts), whole.x.dtype());
  const auto columns = qkv_columns(whole.dims, idx, parts);
  part.x = cut_columns(stream, whole.x, columns);
  part.dy = cut_columns(stream, whole.dy, columns);
  const auto cut_vector = [&](const Tensor& vector) {
    const int64_t size = vector.dim(0) / parts;
    const Tensor copy = poisoned(stream, {size}, vector.dtype());
    stream.copy(copy, vector.rows(idx * size, (idx + 1) * size));
    return copy;
  };
  part.q_weight = cut_vector(whole.q_weight);
  part.k_weight = cut_vector(whole.k_weight);
  part.dq_weight = cut_vector(whole.dq_weight);
  part.dk_weight = cut_vector(whole.dk_weight);
  return part;
}

class QkNormParts : public DeviceTest {
 protected:
  // The sum over the parts that make_sums(sums, part) writes.
  template <class MakeSums>
  Tensor sum_over(const std::vector<Part>& parts, const MakeSums& make_sums) {
    std::vector<double> total(static_cast<size_t>(parts[0].dims.tokens() * 2), 0);
    for (const Part& part : parts) {
      const Tensor sums = output({part.dims.tokens(), 2}, accumulate());
      make_sums(sums, part);
      const auto values = read_back_as_double(stream(), sums);
      for (size_t i = 0; i < total.size(); ++i) total[i] += values[i];
    }
    return tensor_of(stream(), total, {parts[0].dims.tokens(), 2}, accumulate());
  }

  void run(const std::vector<Part>& parts) {
    const auto count = static_cast<int64_t>(parts.size());
    const Tensor squares = sum_over(parts, [&](const Tensor& sums, const Part& part) {
      qk_norm_squares(stream(), sums, part.x, part.dims);
    });
    for (const Part& part : parts)
      qk_norm_apply(stream(), part.y, part.rstd, part.x, squares, part.q_weight, part.k_weight,
                    part.dims, count, kEps);
    const Tensor products = sum_over(parts, [&](const Tensor& sums, const Part& part) {
      qk_norm_products(stream(), sums, part.dy, part.x, part.q_weight, part.k_weight, part.dims);
    });
    for (const Part& part : parts)
      qk_norm_apply_backward(stream(), part.dx, part.dq_weight, part.dk_weight, part.dy, part.x,
                             part.rstd, products, part.q_weight, part.k_weight, part.dims, count);
  }

  // The same inputs, whole and in float64, through the ops for one rank.
  Part exact_whole(const Part& whole) {
    Part same = make_part(reference(), whole.dims, DType::F64);
    same.x = exact(whole.x);
    same.dy = exact(whole.dy);
    same.q_weight = exact(whole.q_weight);
    same.k_weight = exact(whole.k_weight);
    same.dq_weight = exact(whole.dq_weight);
    same.dk_weight = exact(whole.dk_weight);
    qk_norm_forward(reference(), same.y, same.rstd, same.x, same.q_weight, same.k_weight, same.dims,
                    QkNormKind::Full, kEps);
    qk_norm_backward(reference(), same.dx, same.dq_weight, same.dk_weight, same.dy, same.x,
                     same.rstd, same.q_weight, same.k_weight, same.dims, QkNormKind::Full);
    return same;
  }
};

TEST_P(QkNormParts, TogetherAreTheWhole) {
  struct Case {
    AttentionDims dims;
    int64_t parts;
  };
  const Case cases[] = {{{1, 1, 2, 2, 1}, 2},    {{2, 5, 4, 2, 6}, 1},     {{2, 5, 4, 2, 6}, 2},
                        {{1, 65, 6, 3, 63}, 3},  {{1, 129, 4, 4, 128}, 4}, {{1, 600, 2, 2, 8}, 2},
                        {{3, 7, 40, 10, 64}, 2}, {{0, 4, 2, 2, 8}, 2}};
  for (const auto& [dims, count] : cases) {
    SCOPED_TRACE(concat(dims.batch, " x ", dims.seq, ", ", dims.heads, "/", dims.kv_heads, " x ",
                        dims.head_dim, " in ", count));
    const Part whole = make_part(stream(), dims, dtype());
    std::vector<Part> parts;
    for (int64_t i = 0; i < count; ++i) parts.push_back(cut(stream(), whole, i, count));
    const Part expected = exact_whole(whole);
    run(parts);

    const double rel = epsilon_of(dtype()), wide = epsilon_of(accumulate());
    const double width = static_cast<double>(dims.q_width());
    const double rows = static_cast<double>(dims.tokens() * dims.heads);
    for (int64_t i = 0; i < count; ++i) {
      const Part& part = parts[static_cast<size_t>(i)];
      const auto columns = qkv_columns(dims, i, count);
      const auto expect_rows = [&](const Tensor& actual, const Tensor& all, double rel,
                                   double abs) {
        testing::expect_close(
            read_back_as_double(stream(), actual),
            columns_of(read_back_as_double(reference(), all), dims.qkv_width(), columns), rel, abs);
      };
      expect_close(part.rstd, expected.rstd, width * wide, 0);
      expect_rows(part.y, expected.y, rel, width * wide);
      // With few elements the gradient nearly cancels, at the size of rstd.
      expect_rows(part.dx, expected.dx, rel, 256 * (width + 8) * wide);
      const auto expect_weights = [&](const Tensor& actual, const Tensor& all) {
        const int64_t size = all.dim(0) / count;
        expect_close(actual, all.rows(i * size, (i + 1) * size), 0, 4 * (rows + width) * wide);
      };
      expect_weights(part.dq_weight, expected.dq_weight);
      expect_weights(part.dk_weight, expected.dk_weight);
    }
  }
}

TEST_P(QkNormParts, SumsAreOfQueriesAndOfKeys) {
  const AttentionDims dims{1, 2, 2, 1, 2};
  const auto make = [&](const std::vector<double>& values, const Shape& shape) {
    return tensor_of(stream(), values, shape, dtype());
  };
  const Tensor x = make({1, 2, 0, 3, 4, 1, 9, 9, 0, 0, 0, 2, 1, 1, 9, 9}, {2, 8});
  const Tensor dy = make({1, 1, 1, 1, 2, 2, 9, 9, 1, 1, 1, 1, 0, 3, 9, 9}, {2, 8});
  const Tensor q_weight = make({1, 2, 3, 4}, {4}), k_weight = make({5, 6}, {2});
  const Tensor squares = output({2, 2}, accumulate()), products = output({2, 2}, accumulate());
  qk_norm_squares(stream(), squares, x, dims);
  qk_norm_products(stream(), products, dy, x, q_weight, k_weight, dims);
  EXPECT_THAT(read_back_as_double(stream(), squares), ::testing::ElementsAre(14, 17, 4, 2));
  EXPECT_THAT(read_back_as_double(stream(), products), ::testing::ElementsAre(17, 52, 8, 18));
}

TEST_P(QkNormParts, CopyValuesAndWorkInPlace) {
  for (const int64_t head_dim : {5, 32}) {
    const AttentionDims dims{2, 17, 2, 1, head_dim};
    Part part = make_part(stream(), dims, dtype());
    std::vector<Part> parts{part};
    run(parts);
    const auto values = [&](const Tensor& rows) {
      return columns_of(read_back_as_double(stream(), rows), dims.qkv_width(),
                        {{dims.q_width() + dims.kv_width(), dims.kv_width()}});
    };
    EXPECT_EQ(values(part.y), values(part.x));
    EXPECT_EQ(values(part.dx), values(part.dy));
    parts[0].dx = parts[0].dy;
    run(parts);
    expect_same_bits(stream(), part.dy, part.dx);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, QkNormParts, device_cases(), case_name);

class QkNormPartsOnCpu : public CpuTest {};

TEST_F(QkNormPartsOnCpu, NameShapesAndDtypes) {
  using ::testing::HasSubstr;
  const auto error_of = [&](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const Part part = make_part(stream(), {1, 3, 4, 2, 3}, DType::F32);
  const Tensor good = zeros(stream(), {3, 2}, DType::F32);
  const Tensor narrow = zeros(stream(), {3, 1}, DType::F32);
  const auto squares = [&](const Tensor& sums) {
    return error_of([&] { qk_norm_squares(stream(), sums, part.x, part.dims); });
  };
  const auto products = [&](const Tensor& sums, const Tensor& k_weight) {
    return error_of([&] {
      qk_norm_products(stream(), sums, part.dy, part.x, part.q_weight, k_weight, part.dims);
    });
  };
  const auto apply = [&](const Tensor& sums, int64_t parts) {
    return error_of([&] {
      qk_norm_apply(stream(), part.y, part.rstd, part.x, sums, part.q_weight, part.k_weight,
                    part.dims, parts, kEps);
    });
  };
  const auto backward = [&](const Tensor& sums, const Tensor& dx, const Tensor& dq_weight,
                            int64_t parts) {
    return error_of([&] {
      qk_norm_apply_backward(stream(), dx, dq_weight, part.dk_weight, part.dy, part.x, part.rstd,
                             sums, part.q_weight, part.k_weight, part.dims, parts);
    });
  };
  EXPECT_EQ(squares(good), "no error");
  EXPECT_EQ(products(good, part.k_weight), "no error");
  EXPECT_EQ(apply(good, 2), "no error");
  EXPECT_EQ(backward(good, part.dx, part.dq_weight, 2), "no error");

  EXPECT_THAT(squares(narrow), HasSubstr("sums has shape [3, 1], not [3, 2]"));
  EXPECT_THAT(squares(zeros(stream(), {3, 2}, DType::F64)), HasSubstr("x is f32, sums are f64"));
  EXPECT_THAT(products(narrow, part.k_weight), HasSubstr("sums has shape [3, 1], not [3, 2]"));
  EXPECT_THAT(products(good, part.q_weight), HasSubstr("k_weight has shape [12], not [6]"));
  EXPECT_THAT(apply(narrow, 2), HasSubstr("sums has shape [3, 1], not [3, 2]"));
  EXPECT_THAT(apply(good, 0), HasSubstr("0 parts"));
  EXPECT_THAT(backward(narrow, part.dx, part.dq_weight, 2),
              HasSubstr("sums has shape [3, 1], not [3, 2]"));
  EXPECT_THAT(backward(good, part.dx, part.dq_weight, 0), HasSubstr("0 parts"));
  EXPECT_THAT(backward(good, narrow, part.dq_weight, 2),
              HasSubstr("dx has shape [3, 1], not [3, 24]"));
  EXPECT_THAT(backward(good, part.dx, zeros(stream(), {12}, DType::BF16), 2),
              HasSubstr("dweights are bf16 and f32"));
}

}  // namespace
}  // namespace ferry::testing
