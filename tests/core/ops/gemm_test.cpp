#include "core/ops/gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

constexpr Transpose kTransposes[] = {Transpose::No, Transpose::Yes};

// c = op(a) op(b) + c, by the definition.
std::vector<double> multiply(int64_t m, int64_t n, int64_t k, const std::vector<double>& a,
                             Transpose ta, const std::vector<double>& b, Transpose tb,
                             std::vector<double> c) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t l = 0; l < k; ++l)
        c[i * n + j] += a[ta == Transpose::Yes ? l * m + i : i * k + l] *
                        b[tb == Transpose::Yes ? j * k + l : l * n + j];
  return c;
}

class Gemm : public DeviceTest {
 protected:
  void expect_product(int64_t m, int64_t n, int64_t k, Transpose ta, Transpose tb, double beta,
                      DType c_dtype) {
    SCOPED_TRACE(concat(m, " x ", n, " x ", k, ta == Transpose::Yes ? " T" : " N",
                        tb == Transpose::Yes ? "T" : "N", " beta ", beta, " into ",
                        name_of(c_dtype)));
    const Tensor a = random(ta == Transpose::Yes ? Shape{k, m} : Shape{m, k}, 1);
    const Tensor b = random(tb == Transpose::Yes ? Shape{n, k} : Shape{k, n}, 2);
    const Tensor c =
        beta == 0 ? output({m, n}, c_dtype) : random_tensor(stream(), {m, n}, c_dtype, 3);
    const std::vector<double> before = beta == 0 ? std::vector<double>(static_cast<size_t>(m * n))
                                                 : read_back_as_double(stream(), c);
    const std::vector<double> expected = multiply(m, n, k, read_back_as_double(stream(), a), ta,
                                                  read_back_as_double(stream(), b), tb, before);
    gemm(stream(), c, a, ta, b, tb, beta);
    expect_sums(c, expected, k);
  }

  // Four batches at once; every one of them has other numbers.
  void expect_batch(int64_t m, int64_t n, int64_t k, Transpose ta, Transpose tb, double beta,
                    DType c_dtype) {
    SCOPED_TRACE(concat(m, " x ", n, " x ", k, ta == Transpose::Yes ? " T" : " N",
                        tb == Transpose::Yes ? "T" : "N", " beta ", beta, " into ",
                        name_of(c_dtype)));
    constexpr int64_t kBatch = 4;
    const Tensor a = random(ta == Transpose::Yes ? Shape{kBatch, k, m} : Shape{kBatch, m, k}, 1);
    const Tensor b = random(tb == Transpose::Yes ? Shape{kBatch, n, k} : Shape{kBatch, k, n}, 2);
    const Tensor c = beta == 0 ? output({kBatch, m, n}, c_dtype)
                               : random_tensor(stream(), {kBatch, m, n}, c_dtype, 3);
    std::vector<double> expected;
    for (int64_t i = 0; i < kBatch; ++i) {
      const auto part = [&](const Tensor& all) {
        return read_back_as_double(stream(), all.rows(i, i + 1));
      };
      const auto before = beta == 0 ? std::vector<double>(static_cast<size_t>(m * n)) : part(c);
      const auto product = multiply(m, n, k, part(a), ta, part(b), tb, before);
      expected.insert(expected.end(), product.begin(), product.end());
    }
    gemm_batched(stream(), c, a, ta, b, tb, beta);
    expect_sums(c, expected, k);
  }

 private:
  // Each of k additions of numbers below 1 may round once.
  void expect_sums(const Tensor& c, const std::vector<double>& expected, int64_t k) {
    testing::expect_close(read_back_as_double(stream(), c), expected, epsilon_of(c.dtype()),
                          static_cast<double>(k + 1) * epsilon_of(accumulate()));
  }
};

TEST_P(Gemm, MultipliesByTheDefinition) {
  const std::tuple<int, int, int> sizes[] = {{1, 1, 1},    {1, 65, 64},    {63, 1, 127},
                                             {64, 64, 64}, {127, 129, 65}, {8, 16, 0}};
  for (const auto& [m, n, k] : sizes)
    for (const Transpose ta : kTransposes)
      for (const Transpose tb : kTransposes)
        for (const double beta : {0.0, 1.0}) {
          if (beta == 0) expect_product(m, n, k, ta, tb, beta, dtype());
          if (beta == 1 || accumulate() != dtype())
            expect_product(m, n, k, ta, tb, beta, accumulate());
        }
}

TEST_P(Gemm, TakesNoRows) {
  const Tensor c = output({0, 5});
  gemm(stream(), c, random({0, 3}, 1), Transpose::No, random({3, 5}, 2), Transpose::No);
  EXPECT_NO_THROW(stream().synchronize());
}

TEST_P(Gemm, MultipliesBatches) {
  const std::tuple<int, int, int> sizes[] = {
      {1, 1, 1}, {3, 5, 7}, {64, 64, 64}, {65, 129, 40}, {8, 16, 0}};
  for (const auto& [m, n, k] : sizes)
    for (const Transpose ta : kTransposes)
      for (const Transpose tb : kTransposes) {
        expect_batch(m, n, k, ta, tb, 0, dtype());
        expect_batch(m, n, k, ta, tb, 1, accumulate());
      }
}

TEST_P(Gemm, TakesNoBatches) {
  gemm_batched(stream(), output({0, 2, 5}), random({0, 2, 3}, 1), Transpose::No,
               random({0, 3, 5}, 2), Transpose::No);
  EXPECT_NO_THROW(stream().synchronize());
}

// A weight gradient of no tokens: nothing is added.
TEST_P(Gemm, AddsNothingForNoInner) {
  const Tensor c = random_tensor(stream(), {4, 5}, accumulate(), 3);
  const std::vector<double> before = read_back_as_double(stream(), c);
  gemm(stream(), c, random({0, 4}, 1), Transpose::Yes, random({0, 5}, 2), Transpose::No, 1);
  EXPECT_EQ(read_back_as_double(stream(), c), before);
}

INSTANTIATE_TEST_SUITE_P(Devices, Gemm, device_cases(), case_name);

class GemmChecks : public CpuTest {
 protected:
  Tensor matrix(const Shape& shape, DType dtype = DType::F32) {
    return zeros(stream(), shape, dtype);
  }
  std::string error_of(const Tensor& c, const Tensor& a, const Tensor& b, double beta = 0) {
    try {
      gemm(stream(), c, a, Transpose::No, b, Transpose::Yes, beta);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(GemmChecks, NamesTheShapes) {
  using ::testing::HasSubstr;
  EXPECT_THAT(error_of(matrix({2, 4}), matrix({2, 3}), matrix({4, 5})),
              HasSubstr("gemm of [2, 3] and [4, 5]^T"));
  EXPECT_THAT(error_of(matrix({2, 5}), matrix({2, 3}), matrix({4, 3})),
              HasSubstr("c has shape [2, 5], not [2, 4]"));
  EXPECT_THAT(error_of(matrix({2, 4}), matrix({2, 3, 1}), matrix({4, 3})),
              HasSubstr("gemm multiplies matrices, not [2, 3, 1]"));
  EXPECT_THAT(error_of(matrix({2, 4}), matrix({2, 3}), matrix({4, 3}), 0.5),
              HasSubstr("beta is 0.5 into f32"));
  EXPECT_THAT(error_of(matrix({2, 4}, DType::BF16), matrix({2, 3}, DType::BF16),
                       matrix({4, 3}, DType::BF16), 1),
              HasSubstr("beta is 1 into bf16"));
}

TEST_F(GemmChecks, NamesTheShapesOfBatches) {
  using ::testing::HasSubstr;
  const auto error_of = [&](const Shape& c, const Shape& a, const Shape& b, double beta = 0) {
    try {
      gemm_batched(stream(), matrix(c), matrix(a), Transpose::No, matrix(b), Transpose::Yes, beta);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(error_of({2, 3, 4}, {2, 3, 5}, {2, 4, 5}), "no error");
  EXPECT_THAT(error_of({2, 3, 4}, {2, 3, 5}, {3, 4, 5}),
              HasSubstr("equal numbers of matrices, not [2, 3, 5] and [3, 4, 5]"));
  EXPECT_THAT(error_of({3, 4}, {3, 5}, {4, 5}),
              HasSubstr("equal numbers of matrices, not [3, 5] and [4, 5]"));
  EXPECT_THAT(error_of({2, 4, 3}, {2, 3, 5}, {2, 4, 5}),
              HasSubstr("c has shape [2, 4, 3], not [2, 3, 4]"));
  EXPECT_THAT(error_of({2, 3, 4}, {2, 3, 5}, {2, 4, 6}),
              HasSubstr("gemm_batched of [2, 3, 5] and [2, 4, 6]^T"));
  EXPECT_THAT(error_of({2, 3, 4}, {2, 3, 5}, {2, 4, 5}, 2), HasSubstr("beta is 2 into f32"));
}

TEST_F(GemmChecks, NamesTheDtypes) {
  EXPECT_THAT(error_of(matrix({2, 4}), matrix({2, 3}, DType::BF16), matrix({4, 3})),
              ::testing::HasSubstr("gemm of bf16 and f32 into f32"));
  EXPECT_THAT(error_of(matrix({2, 4}, DType::BF16), matrix({2, 3}), matrix({4, 3})),
              ::testing::HasSubstr("gemm of f32 and f32 into bf16"));
}

}  // namespace
}  // namespace ferry::testing
