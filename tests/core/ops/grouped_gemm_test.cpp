#include "core/ops/grouped_gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/ops/elementwise.h"
#include "core/ops/swiglu.h"
#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

struct Groups {
  std::string name;
  std::vector<int32_t> counts;
};

std::vector<Groups> all_groups() {
  return {{"no rows", {0, 0, 0}},
          {"one row", {0, 1, 0}},
          {"all to the first", {130, 0, 0}},
          {"all to the last", {0, 0, 127}},
          {"one group", {65}},
          {"odd sizes", {1, 63, 64, 0, 65, 127, 129, 0}},
          {"single rows", {1, 1, 1, 1}}};
}

struct Case {
  Groups groups;
  int64_t n, k;
};

// Groups that end at, before and behind the tiles of every kernel.
Groups many_sizes() { return {"many sizes", {1, 63, 64, 65, 127, 129, 0, 256, 600, 0}}; }

// Every kind of groups with dims that kernels take 16 bytes wide, and with odd ones.
std::vector<Case> all_cases(int64_t n, int64_t k) {
  std::vector<Case> cases;
  for (const Groups& groups : all_groups()) {
    cases.push_back({groups, n, k});
    cases.push_back({groups, n - 5, k + 1});
  }
  return cases;
}

std::vector<int32_t> offsets_of(const std::vector<int32_t>& counts) {
  std::vector<int32_t> offsets{0};
  for (const int32_t count : counts) offsets.push_back(offsets.back() + count);
  return offsets;
}

class GroupedGemm : public DeviceTest {
 protected:
  struct Problem {
    int64_t groups, rows, n, k;
    std::vector<int32_t> offsets;
    Tensor offsets_tensor;
  };
  Problem problem(const Groups& groups, int64_t n, int64_t k) {
    std::vector<int32_t> offsets = offsets_of(groups.counts);
    const auto count = static_cast<int64_t>(groups.counts.size());
    const Tensor tensor = ints(offsets, {count + 1});
    return {count, offsets.back(), n, k, std::move(offsets), tensor};
  }
  // On a GPU also with dims that fill whole boxes and a part of a tile: 320 is a tile and a
  // quarter, 192 fewer steps than a ring has stages, 832 more.
  std::vector<Case> cases() const {
    std::vector<Case> cases = all_cases(72, 40);
    if (on_cpu()) return cases;
    for (const Groups& groups : all_groups()) cases.push_back({groups, 192, 128});
    cases.push_back({many_sizes(), 320, 832});
    cases.push_back({many_sizes(), 832, 192});
    cases.push_back({many_sizes(), 256, 512});
    cases.push_back({many_sizes(), 448, 384});
    return cases;
  }
  // Of n, the width of gate; where kernels are fused, which is in BF16, tiles of 128 of it and sums
  // of 16 steps.
  std::vector<Case> swiglu_cases() const {
    std::vector<Case> cases;
    for (const Groups& groups : all_groups()) cases.push_back({groups, 24, 40});
    if (on_cpu() || dtype() != DType::BF16) return cases;
    cases.push_back({many_sizes(), 384, 1024});
    cases.push_back({many_sizes(), 128, 832});
    cases.push_back({many_sizes(), 256, 1088});
    cases.push_back({many_sizes(), 640, 2048});
    return cases;
  }
  struct GatheredAndCopied {
    Rows gathered, copies;
  };
  // Rows of tokens in any order, some of them several times.
  GatheredAndCopied gathered_and_copied(const Problem& p) {
    int64_t choices = 8;
    while (p.rows % choices != 0) --choices;
    const Tensor tokens = random({p.rows / choices, p.k}, 1), copies = output({p.rows, p.k});
    std::mt19937 generator(5);
    std::vector<int32_t> slots;
    for (int64_t row = 0; row < p.rows; ++row) {
      const int64_t slot = static_cast<int64_t>(generator()) % p.rows, token = slot / choices;
      slots.push_back(static_cast<int32_t>(slot));
      stream().copy(copies.rows(row, row + 1), tokens.rows(token, token + 1));
    }
    return {Rows(tokens, ints(slots, {p.rows})), copies};
  }
  Tensor wgrad(const Problem& p, const Rows& rows) {
    const Tensor dy = random({p.rows, p.n}, 3);
    const Tensor dweight = random_tensor(stream(), {p.groups, p.n, p.k}, accumulate(), 4);
    grouped_gemm_wgrad(stream(), dweight, dy, rows, p.offsets_tensor);
    return dweight;
  }
  double tolerance(int64_t additions) const {
    return static_cast<double>(additions + 1) * epsilon_of(accumulate());
  }
};

// Calls body(group, row) for every row.
template <class Body>
void for_each_row(const std::vector<int32_t>& offsets, Body&& body) {
  for (size_t group = 0; group + 1 < offsets.size(); ++group)
    for (int64_t row = offsets[group]; row < offsets[group + 1]; ++row)
      body(static_cast<int64_t>(group), row);
}

TEST_P(GroupedGemm, ForwardMultipliesEachGroupByItsWeight) {
  for (const auto& [groups, n, k] : cases()) {
    SCOPED_TRACE(concat(groups.name, ' ', n, ' ', k));
    const Problem p = problem(groups, n, k);
    const Tensor x = random({p.rows, p.k}, 1), weight = random({p.groups, p.n, p.k}, 2);
    const Tensor y = output({p.rows, p.n});
    grouped_gemm_forward(stream(), y, x, weight, p.offsets_tensor);

    const auto xs = read_back_as_double(stream(), x), ws = read_back_as_double(stream(), weight);
    std::vector<double> expected(static_cast<size_t>(p.rows * p.n));
    for_each_row(p.offsets, [&](int64_t group, int64_t row) {
      for (int64_t i = 0; i < p.n; ++i)
        for (int64_t j = 0; j < p.k; ++j)
          expected[row * p.n + i] += xs[row * p.k + j] * ws[(group * p.n + i) * p.k + j];
    });
    testing::expect_close(read_back_as_double(stream(), y), expected, epsilon_of(dtype()),
                          tolerance(p.k));
  }
}

TEST_P(GroupedGemm, DgradMultipliesByTheWeightUntransposed) {
  for (const auto& [groups, n, k] : cases()) {
    SCOPED_TRACE(concat(groups.name, ' ', n, ' ', k));
    const Problem p = problem(groups, n, k);
    const Tensor dy = random({p.rows, p.n}, 1), weight = random({p.groups, p.n, p.k}, 2);
    const Tensor dx = output({p.rows, p.k});
    grouped_gemm_dgrad(stream(), dx, dy, weight, p.offsets_tensor);

    const auto dys = read_back_as_double(stream(), dy), ws = read_back_as_double(stream(), weight);
    std::vector<double> expected(static_cast<size_t>(p.rows * p.k));
    for_each_row(p.offsets, [&](int64_t group, int64_t row) {
      for (int64_t i = 0; i < p.n; ++i)
        for (int64_t j = 0; j < p.k; ++j)
          expected[row * p.k + j] += dys[row * p.n + i] * ws[(group * p.n + i) * p.k + j];
    });
    testing::expect_close(read_back_as_double(stream(), dx), expected, epsilon_of(dtype()),
                          tolerance(p.n));
  }
}

TEST_P(GroupedGemm, WgradAddsToTheGradient) {
  for (const auto& [groups, n, k] : cases()) {
    SCOPED_TRACE(concat(groups.name, ' ', n, ' ', k));
    const Problem p = problem(groups, n, k);
    const Tensor dy = random({p.rows, p.n}, 1), x = random({p.rows, p.k}, 2);
    const Tensor dweight = random_tensor(stream(), {p.groups, p.n, p.k}, accumulate(), 3);
    std::vector<double> expected = read_back_as_double(stream(), dweight);
    grouped_gemm_wgrad(stream(), dweight, dy, x, p.offsets_tensor);

    const auto dys = read_back_as_double(stream(), dy), xs = read_back_as_double(stream(), x);
    for_each_row(p.offsets, [&](int64_t group, int64_t row) {
      for (int64_t i = 0; i < p.n; ++i)
        for (int64_t j = 0; j < p.k; ++j)
          expected[(group * p.n + i) * p.k + j] += dys[row * p.n + i] * xs[row * p.k + j];
    });
    testing::expect_close(read_back_as_double(stream(), dweight), expected,
                          epsilon_of(accumulate()), tolerance(p.rows));
  }
}

// The same bits as the product and SwiGLU one after the other, which other tests compare with
// float64.
TEST_P(GroupedGemm, SwigluForwardIsTheProductThenSwiglu) {
  for (const auto& [groups, ffn, k] : swiglu_cases()) {
    SCOPED_TRACE(concat(groups.name, ' ', ffn, ' ', k));
    const Problem p = problem(groups, 2 * ffn, k);
    const Tensor x = random({p.rows, p.k}, 1), weight = random({p.groups, p.n, p.k}, 2, 0.1);
    for (const bool with_prob : {true, false}) {
      const Tensor prob = with_prob ? random_tensor(stream(), {p.rows}, accumulate(), 3) : Tensor();
      const Tensor gate_up = output({p.rows, p.n}), h = output({p.rows, ffn});
      grouped_gemm_swiglu_forward(stream(), gate_up, h, x, weight, prob, p.offsets_tensor);
      const Tensor expected_gate_up = output({p.rows, p.n}), expected_h = output({p.rows, ffn});
      grouped_gemm_forward(stream(), expected_gate_up, x, weight, p.offsets_tensor);
      swiglu_forward(stream(), expected_h, expected_gate_up, prob);
      expect_same_bits(stream(), gate_up, expected_gate_up);
      expect_same_bits(stream(), h, expected_h);
    }
  }
}

TEST_P(GroupedGemm, SwigluBackwardIsTheProductThenSwiglu) {
  for (const auto& [groups, ffn, n] : swiglu_cases()) {
    SCOPED_TRACE(concat(groups.name, ' ', ffn, ' ', n));
    const Problem p = problem(groups, n, ffn);
    const Tensor dy = random({p.rows, p.n}, 1), weight = random({p.groups, p.n, ffn}, 2, 0.1);
    const Tensor gate_up = random({p.rows, 2 * ffn}, 4, 2);
    for (const bool with_prob : {true, false}) {
      const Tensor prob = with_prob ? random_tensor(stream(), {p.rows}, accumulate(), 3) : Tensor();
      const Tensor dprob = with_prob ? output({p.rows}, accumulate()) : Tensor();
      const Tensor dgate_up = output(gate_up.shape());
      grouped_gemm_swiglu_backward(stream(), dgate_up, dprob, dy, weight, gate_up, prob,
                                   p.offsets_tensor);
      const Tensor dh = output({p.rows, ffn}), expected = output(gate_up.shape());
      const Tensor expected_dprob = with_prob ? output({p.rows}, accumulate()) : Tensor();
      grouped_gemm_dgrad(stream(), dh, dy, weight, p.offsets_tensor);
      swiglu_backward(stream(), expected, expected_dprob, dh, gate_up, prob);
      expect_same_bits(stream(), dgate_up, expected);
      if (!with_prob) continue;
      // Sums in another order.
      double largest = 1;
      for (const double value : read_back_as_double(stream(), dh))
        largest = std::max(largest, std::abs(value));
      testing::expect_close(read_back_as_double(stream(), dprob),
                            read_back_as_double(stream(), expected_dprob), 1e-5, 1e-5 * largest);
    }
  }
}

TEST_P(GroupedGemm, SwigluBackwardMayOverwriteGateAndUp) {
  const Problem p = problem({"", {70, 0, 200}}, 1024, 256);
  const Tensor dy = random({p.rows, p.n}, 1), weight = random({p.groups, p.n, p.k}, 2, 0.1);
  const Tensor gate_up = random({p.rows, 2 * p.k}, 4), expected = output(gate_up.shape());
  const Tensor prob = random_tensor(stream(), {p.rows}, accumulate(), 3);
  grouped_gemm_swiglu_backward(stream(), expected, {}, dy, weight, gate_up, prob, p.offsets_tensor);
  grouped_gemm_swiglu_backward(stream(), gate_up, {}, dy, weight, gate_up, prob, p.offsets_tensor);
  expect_same_bits(stream(), gate_up, expected);
}

TEST_P(GroupedGemm, GatheredRowsGiveTheBitsOfTheirCopies) {
  for (const auto& [groups, ffn, k] : swiglu_cases()) {
    SCOPED_TRACE(concat(groups.name, ' ', ffn, ' ', k));
    const Problem p = problem(groups, 2 * ffn, k);
    const auto [gathered, copies] = gathered_and_copied(p);
    const Tensor weight = random({p.groups, p.n, p.k}, 2, 0.1);
    const auto results = [&](const Rows& rows) {
      const Tensor gate_up = output({p.rows, p.n}), h = output({p.rows, ffn});
      grouped_gemm_swiglu_forward(stream(), gate_up, h, rows, weight, {}, p.offsets_tensor);
      return std::array{gate_up, h, wgrad(p, rows)};
    };
    const auto outcome = results(gathered), expected = results(copies);
    for (size_t i = 0; i < expected.size(); ++i)
      expect_same_bits(stream(), outcome[i], expected[i]);
  }
}

// Odd numbers of tiles both ways, and tiles that are not full.
TEST_P(GroupedGemm, GatheredWgradGivesTheBitsOfCopies) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{192, 64}, {128, 768}, {320, 320}}) {
    SCOPED_TRACE(concat(n, ' ', k));
    const Problem p = problem({"", {70, 0, 1, 200, 65}}, n, k);
    const auto [gathered, copies] = gathered_and_copied(p);
    expect_same_bits(stream(), wgrad(p, gathered), wgrad(p, copies));
  }
}

// Rows behind the last group belong to nobody.
TEST_P(GroupedGemm, LeavesRowsBehindTheGroups) {
  const Problem p = problem({"", {70, 0, 61}}, 256, 128);
  const int64_t rows = p.rows + 130;
  const Tensor weight = random({p.groups, p.n, p.k}, 2);
  const Tensor y = output({rows, p.n}), dx = output({rows, p.k});
  grouped_gemm_forward(stream(), y, random({rows, p.k}, 1), weight, p.offsets_tensor);
  grouped_gemm_dgrad(stream(), dx, random({rows, p.n}, 3), weight, p.offsets_tensor);
  for (const Tensor& tensor : {y, dx}) {
    const std::vector<double> values = read_back_as_double(stream(), tensor);
    const auto owned = static_cast<size_t>(p.rows * tensor.dim(1));
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(std::isnan(values[i]), i >= owned) << i;
  }
}

// What other groups hold, and numbers that are none, does not reach a group.
TEST_P(GroupedGemm, GroupsDoNotTouchEachOther) {
  const Problem p = problem({"", {70, 40, 61}}, 256, 128);
  const Tensor x = random({p.rows, p.k}, 1), dy = random({p.rows, p.n}, 3);
  const Tensor weight = random({p.groups, p.n, p.k}, 2);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Tensor& tensor : {x, dy}) fill(stream(), tensor.rows(70, 110), nan);
  fill(stream(), weight.rows(1, 2), nan);
  const Tensor y = output({p.rows, p.n}), dx = output({p.rows, p.k});
  const Tensor dweight = random_tensor(stream(), {p.groups, p.n, p.k}, accumulate(), 4);
  grouped_gemm_forward(stream(), y, x, weight, p.offsets_tensor);
  grouped_gemm_dgrad(stream(), dx, dy, weight, p.offsets_tensor);
  grouped_gemm_wgrad(stream(), dweight, dy, x, p.offsets_tensor);
  for (const Tensor& tensor : {y.rows(0, 70), y.rows(110, 171), dx.rows(0, 70), dx.rows(110, 171),
                               dweight.rows(0, 1), dweight.rows(2, 3)})
    for (const double value : read_back_as_double(stream(), tensor))
      ASSERT_FALSE(std::isnan(value));
}

// The same rows give the same bits, whatever other groups hold.
TEST_P(GroupedGemm, IsDeterministic) {
  const Problem p = problem({"", {7, 0, 120, 3}}, 64, 64);
  const Tensor x = random({p.rows, p.k}, 1), weight = random({p.groups, p.n, p.k}, 2);
  const Tensor first = output({p.rows, p.n}), second = output({p.rows, p.n});
  grouped_gemm_forward(stream(), first, x, weight, p.offsets_tensor);
  grouped_gemm_forward(stream(), second, x, weight, p.offsets_tensor);
  expect_same_bits(stream(), first, second);
}

INSTANTIATE_TEST_SUITE_P(Devices, GroupedGemm, device_cases(), case_name);

class GroupedGemmChecks : public CpuTest {
 protected:
  Tensor matrix(const Shape& shape, DType dtype = DType::F32) {
    return zeros(stream(), shape, dtype);
  }
  Tensor offsets(const std::vector<int32_t>& values) {
    return from_host(stream(), "offsets", values, {static_cast<int64_t>(values.size())});
  }
  std::string error_of(const Tensor& y, const Tensor& x, const Tensor& weight,
                       const Tensor& offsets) {
    try {
      grouped_gemm_forward(stream(), y, x, weight, offsets);
      stream().synchronize();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

using ::testing::HasSubstr;

TEST_F(GroupedGemmChecks, NamesTheShapes) {
  EXPECT_THAT(error_of(matrix({3, 4}), matrix({3, 5}), matrix({2, 4, 6}), offsets({0, 1, 3})),
              HasSubstr("x has shape [3, 5], not [3, 6]"));
  EXPECT_THAT(error_of(matrix({3, 5}), matrix({3, 6}), matrix({2, 4, 6}), offsets({0, 1, 3})),
              HasSubstr("y has shape [3, 5], not [3, 4]"));
  EXPECT_THAT(error_of(matrix({3, 4}), matrix({3, 6}), matrix({4, 6}), offsets({0, 1, 3})),
              HasSubstr("weight has shape [4, 6], not [E, N, K]"));
  EXPECT_THAT(error_of(matrix({3, 4}), matrix({3, 6}), matrix({2, 4, 6}), offsets({0, 3})),
              HasSubstr("offsets has shape [2], not [3]"));
  EXPECT_THAT(
      error_of(matrix({3, 4}), matrix({3, 6}), matrix({2, 4, 6}, DType::BF16), offsets({0, 1, 3})),
      HasSubstr("weight is bf16, rows are f32"));
}

TEST_F(GroupedGemmChecks, RefusesAnIndexThatDoesNotFit) {
  const auto error_of_wgrad = [&](const Tensor& tokens, const Tensor& index) -> std::string {
    try {
      grouped_gemm_wgrad(stream(), matrix({2, 4, 6}), matrix({3, 4}), Rows(tokens, index),
                         offsets({0, 1, 3}));
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of_wgrad(matrix({1, 6}), offsets({2, 0, 1})), "no error");
  EXPECT_THAT(error_of_wgrad(matrix({2, 6}), offsets({2, 0, 1})),
              HasSubstr("3 gathered rows of 2 tokens"));
  EXPECT_THAT(error_of_wgrad(matrix({0, 6}), offsets({2, 0, 1})),
              HasSubstr("3 gathered rows of 0 tokens"));
  EXPECT_THAT(error_of_wgrad(matrix({1, 6}), matrix({3})),
              HasSubstr("slot_of_row is f32[3], not [R] I32"));
  EXPECT_THAT(error_of_wgrad(matrix({2, 6}), offsets({2, 0, 1, 3})),
              HasSubstr("y has shape [3, 4], not [4, 4]"));
}

TEST_F(GroupedGemmChecks, RefusesOffsetsThatDoNotFitTheRows) {
  EXPECT_THAT(error_of(matrix({3, 4}), matrix({3, 6}), matrix({2, 4, 6}), offsets({0, 1, 4})),
              HasSubstr("groups own rows [0, 4) of 3"));
}

TEST_F(GroupedGemmChecks, RefusesOffsetsThatDecrease) {
  EXPECT_THAT(error_of(matrix({3, 4}), matrix({3, 6}), matrix({2, 4, 6}), offsets({0, 4, 3})),
              HasSubstr("offsets of group 1 decrease"));
}

}  // namespace
}  // namespace ferry::testing
