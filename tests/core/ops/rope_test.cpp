#include "core/ops/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/devices.h"
#include "tests/support/gradients.h"

namespace ferry::testing {
namespace {

class Rope : public DeviceTest {
 protected:
  struct Table {
    Tensor cosine, sine;
  };
  Table table(const AttentionDims& dims, double theta = 10000) {
    Table made{output({dims.seq, dims.head_dim / 2}, accumulate()),
               output({dims.seq, dims.head_dim / 2}, accumulate())};
    rope_table(stream(), made.cosine, made.sine, theta);
    return made;
  }
};

std::vector<AttentionDims> all_dims() {
  return {{1, 1, 1, 1, 2}, {2, 5, 4, 2, 6}, {3, 65, 3, 1, 32}, {1, 129, 2, 2, 64}, {0, 4, 2, 1, 8}};
}

// Rotation of each pair by its angle, from the definition.
std::vector<double> rotated(std::vector<double> x, const AttentionDims& dims, double theta,
                            double sign) {
  for (int64_t t = 0; t < dims.tokens(); ++t)
    for (int64_t head = 0; head < dims.heads + dims.kv_heads; ++head)
      for (int64_t i = 0; i < dims.head_dim / 2; ++i) {
        const double angle =
            sign * static_cast<double>(t % dims.seq) *
            std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dims.head_dim));
        double& a = x[t * dims.qkv_width() + head * dims.head_dim + i];
        double& b = (&a)[dims.head_dim / 2];
        const double a_before = a;
        a = a * std::cos(angle) - b * std::sin(angle);
        b = b * std::cos(angle) + a_before * std::sin(angle);
      }
  return x;
}

TEST_P(Rope, RotatesQueriesAndKeysAndCopiesValues) {
  for (const AttentionDims& dims : all_dims()) {
    SCOPED_TRACE(concat(dims.batch, " x ", dims.seq, ", ", dims.heads, "/", dims.kv_heads, " x ",
                        dims.head_dim));
    const Table t = table(dims, 500);
    const Tensor x = random({dims.tokens(), dims.qkv_width()}, 1);
    const auto before = read_back_as_double(stream(), x);
    for (const Rotation rotation : {Rotation::Forward, Rotation::Backward}) {
      const Tensor y = output({dims.tokens(), dims.qkv_width()});
      rope(stream(), y, x, t.cosine, t.sine, dims, rotation);
      testing::expect_close(read_back_as_double(stream(), y),
                            rotated(before, dims, 500, rotation == Rotation::Forward ? 1 : -1),
                            epsilon_of(dtype()), 4 * epsilon_of(accumulate()));
    }
  }
}

TEST_P(Rope, InPlaceGivesTheSameBits) {
  const AttentionDims dims{2, 33, 3, 3, 16};
  const Table t = table(dims);
  const Tensor x = random({dims.tokens(), dims.qkv_width()}, 1);
  const Tensor y = output({dims.tokens(), dims.qkv_width()});
  rope(stream(), y, x, t.cosine, t.sine, dims, Rotation::Forward);
  rope(stream(), x, x, t.cosine, t.sine, dims, Rotation::Forward);
  expect_same_bits(stream(), x, y);
}

// Angles of late positions lose their fraction in float: the table is computed in double.
TEST_P(Rope, TableIsExactAtLatePositions) {
  const int64_t seq = 4096, half = 4;
  const Tensor cosine = output({seq, half}, accumulate()), sine = output({seq, half}, accumulate());
  rope_table(stream(), cosine, sine, 1e6);
  std::vector<double> cosines, sines;
  for (int64_t position = 0; position < seq; ++position)
    for (int64_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(position) * std::pow(1e6, -static_cast<double>(i) / 4);
      cosines.push_back(std::cos(angle));
      sines.push_back(std::sin(angle));
    }
  const double bound = accumulate() == DType::F64 ? 1e-12 : epsilon_of(DType::F32);
  testing::expect_close(read_back_as_double(stream(), cosine), cosines, 0, bound);
  testing::expect_close(read_back_as_double(stream(), sine), sines, 0, bound);
}

INSTANTIATE_TEST_SUITE_P(Devices, Rope, device_cases(), case_name);

class RopeOnCpu : public CpuTest {};

TEST_F(RopeOnCpu, BackwardIsTheGradient) {
  const AttentionDims dims{1, 3, 2, 1, 4};
  const Shape shape{dims.tokens(), dims.qkv_width()};
  const Tensor cosine = zeros(stream(), {3, 2}, DType::F64);
  const Tensor sine = zeros(stream(), {3, 2}, DType::F64);
  rope_table(stream(), cosine, sine, 100);
  const Tensor x = random_tensor(stream(), shape, DType::F64, 1);
  const Tensor dy = random_tensor(stream(), shape, DType::F64, 2);
  const Tensor y = poisoned(stream(), shape, DType::F64);
  const Tensor dx = poisoned(stream(), shape, DType::F64);
  rope(stream(), dx, dy, cosine, sine, dims, Rotation::Backward);
  expect_element_gradients(stream(), {"x", x, dx}, [&] {
    rope(stream(), y, x, cosine, sine, dims, Rotation::Forward);
    return dot(stream(), y, dy);
  });
}

TEST_F(RopeOnCpu, NamesShapesAndDtypes) {
  using ::testing::HasSubstr;
  const auto zero = [&](const Shape& shape, DType dtype) { return zeros(stream(), shape, dtype); };
  const auto error_of = [&](const AttentionDims& dims, const Tensor& x,
                            const Tensor& cosine) -> std::string {
    try {
      rope(stream(), x, x, cosine, cosine, dims, Rotation::Forward);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const Tensor x = zero({3, 16}, DType::F32), cosine = zero({3, 2}, DType::F32);
  EXPECT_EQ(error_of({1, 3, 2, 1, 4}, x, cosine), "no error");
  EXPECT_THAT(error_of({1, 3, 2, 1, 5}, zero({3, 20}, DType::F32), cosine),
              HasSubstr("RoPE pairs the elements of a head, whose size is 5"));
  EXPECT_THAT(error_of({1, 3, 3, 2, 4}, x, cosine),
              HasSubstr("3 query heads cannot share 2 key heads"));
  EXPECT_THAT(error_of({1, 3, 2, 1, 4}, x, zero({4, 2}, DType::F32)),
              HasSubstr("cosine has shape [4, 2], not [3, 2]"));
  EXPECT_THAT(error_of({1, 3, 2, 1, 4}, zero({3, 16}, DType::F64), cosine),
              HasSubstr("x is f64, y is f64, cosine is f32"));
  EXPECT_THROW(rope_table(stream(), cosine, cosine, 0), Error);
  const Tensor bf16 = zero({3, 2}, DType::BF16);
  EXPECT_THROW(rope_table(stream(), bf16, bf16, 10), Error);
}

}  // namespace
}  // namespace ferry::testing
