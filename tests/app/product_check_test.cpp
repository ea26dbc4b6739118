#include "app/product_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <numeric>

#include "core/ops/elementwise.h"
#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr GroupedPass kPasses[] = {GroupedPass::Forward, GroupedPass::Dgrad, GroupedPass::Wgrad};
constexpr RandomKey kKey{77, 0, 5};

class ProductCheckTest : public DeviceTest {
 protected:
  GroupedProduct product(GroupedPass pass, std::vector<int64_t> counts = {0, 1, 40, 0, 3, 20, 0},
                         int64_t n = 24, int64_t k = 16) {
    const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const Shape weight{static_cast<int64_t>(counts.size()), n, k};
    return {pass,
            "fc1 test",
            normal({rows, n}, dtype(), 1),
            normal({rows, k}, dtype(), 2),
            normal(weight, pass == GroupedPass::Wgrad ? accumulate() : dtype(), 3),
            std::move(counts)};
  }

  // Forward with SwiGLU, or wgrad, of 16 tokens with 4 choices each.
  GroupedProduct gathering(GroupedPass pass) {
    GroupedProduct made = product(pass);
    const int64_t rows = made.y.dim(0);
    made.x = normal({rows / 4, 16}, dtype(), 4);
    std::vector<int32_t> slots(static_cast<size_t>(rows));
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(i * 5 % slots.size());
    made.slot_of_row = ints(slots, {rows});
    if (pass == GroupedPass::Wgrad) return made;
    made.h = normal({rows, 12}, dtype(), 5);
    made.prob = normal({rows}, accumulate(), 6);
    return made;
  }

  // What the check says after the product, and after `damage` done to its output.
  std::string verdict(
      const GroupedProduct& product, const std::function<void()>& damage = [] {},
      int64_t num_random = 256) {
    const ProductCheck check(stream(), product, kKey, num_random);
    product.enqueue(stream(), product.offsets(stream()));
    damage();
    return verdict(check);
  }
  static std::string verdict(const ProductCheck& check) {
    try {
      check.expect_right();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::Internal);
      return error.what();
    }
    return "right";
  }

  Tensor normal(const Shape& shape, DType dtype, uint32_t site) {
    const Tensor tensor = Tensor::empty(stream(), "test", shape, dtype);
    fill_normal(stream(), tensor, 1.0, {9, 0, site}, 0);
    return tensor;
  }
  static Tensor output_rows(const GroupedProduct& product) {
    const Tensor& output = product.output();
    return output.reshape({output.numel() / output.dim(-1), output.dim(-1)});
  }
};

TEST_P(ProductCheckTest, FindsARightProductRight) {
  for (const GroupedPass pass : kPasses) {
    EXPECT_EQ(verdict(product(pass)), "right");
    EXPECT_EQ(verdict(product(pass, {600, 0, 1}, 72, 40)), "right");
    EXPECT_EQ(verdict(product(pass, {2, 2}, 8, 2048)), "right");
    EXPECT_EQ(verdict(product(pass, {3, 1}, 2048, 8)), "right");
  }
}

TEST_P(ProductCheckTest, FindsWhatWasNotWritten) {
  for (const GroupedPass pass : kPasses) {
    const GroupedProduct made = product(pass);
    const ProductCheck check(stream(), made, kKey);
    EXPECT_THAT(verdict(check), HasSubstr("fc1 test: wrong product"));
    if (pass == GroupedPass::Wgrad) continue;
    for (const double value : read_back_as_double(stream(), made.output()))
      ASSERT_TRUE(std::isnan(value));
  }
}

TEST_P(ProductCheckTest, KnowsWhichTokensRowsAre) {
  for (const auto pass : {GroupedPass::Forward, GroupedPass::Wgrad}) {
    const GroupedProduct made = gathering(pass);
    EXPECT_EQ(verdict(made), "right");
    const ProductCheck check(stream(), made, kKey);
    GroupedProduct other = made;
    std::vector<int32_t> slots = read_back<int32_t>(stream(), made.slot_of_row);
    std::swap(slots[3], slots[4]);  // of one group
    other.slot_of_row = ints(slots, {std::ssize(slots)});
    other.enqueue(stream(), other.offsets(stream()));
    EXPECT_THAT(verdict(check), HasSubstr("wrong product"));
  }
}

TEST_P(ProductCheckTest, FindsAWrongActivation) {
  const GroupedProduct made = gathering(GroupedPass::Forward);
  EXPECT_THAT(verdict(
                  made, [&] { scale(stream(), made.h.rows(40, 41), 1.05); }, 0),
              AllOf(HasSubstr("fc1 test: wrong activation\n  row 40 (of group 2), column "),
                    HasSubstr("seed: 77")));
  GroupedProduct without = made;
  without.h = without.prob = {};
  without.x = without.rows().contiguous(stream(), "test");
  without.slot_of_row = {};
  const ProductCheck check(stream(), made, kKey);
  without.enqueue(stream(), without.offsets(stream()));
  EXPECT_THAT(verdict(check), HasSubstr("wrong activation")) << "it was not written";
}

// Not by luck: those rows have an element of their own among those that are checked.
TEST_P(ProductCheckTest, FindsTheFirstAndLastRowOfAGroupWrong) {
  for (const GroupedPass pass : kPasses) {
    const GroupedProduct made = product(pass);
    const bool wgrad = pass == GroupedPass::Wgrad;
    // Forward and dgrad: group 2 has rows 1 to 40. Wgrad: matrix 2 has rows 48 to 71.
    const int64_t first = wgrad ? 48 : 1, last = wgrad ? 71 : 40;
    for (const int64_t row : {first, last})
      EXPECT_THAT(
          verdict(
              made, [&] { scale(stream(), output_rows(made).rows(row, row + 1), 1.02); }, 0),
          AllOf(HasSubstr(concat("row ", row, " (of group 2)")), HasSubstr("+-"),
                HasSubstr("seed: 77")));
  }
}

// A kernel that stops a row too early, or reads one of the next group.
TEST_P(ProductCheckTest, FindsATermTooFewAndTooMany) {
  for (const GroupedPass pass : kPasses) {
    GroupedProduct made = product(pass, {30, 34});
    for (const int64_t count : {29, 31}) {
      const ProductCheck check(stream(), made, kKey);
      GroupedProduct other = made;
      other.counts = {count, 64 - count};
      other.enqueue(stream(), other.offsets(stream()));
      EXPECT_THAT(verdict(check), HasSubstr("wrong product"));
    }
  }
}

TEST_P(ProductCheckTest, FindsAWeightGradientThatDoesNotAdd) {
  const GroupedProduct made = product(GroupedPass::Wgrad);
  const ProductCheck check(stream(), made, kKey);
  stream().zero(made.weight);
  made.enqueue(stream(), made.offsets(stream()));
  EXPECT_THAT(verdict(check), HasSubstr("wrong product"));
}

// The sums of long groups and wide rows reach the host in several parts.
TEST_P(ProductCheckTest, SumsMoreThanIsOnTheHostAtATime) {
  const GroupedProduct made = product(GroupedPass::Wgrad, {0, 70000}, 80, 8);
  EXPECT_EQ(verdict(made), "right");
  const ProductCheck check(stream(), made, kKey);
  GroupedProduct other = made;
  other.counts = {1000, 69000};
  other.enqueue(stream(), other.offsets(stream()));
  EXPECT_THAT(verdict(check), HasSubstr("wrong product"));
}

INSTANTIATE_TEST_SUITE_P(Devices, ProductCheckTest, device_cases(), case_name);

class ProductCheckText : public CpuTest {};

TEST_F(ProductCheckText, NamesTheElement) {
  const auto ones = [&](const Shape& shape) {
    const Tensor tensor = zeros(stream(), shape, DType::F32);
    fill(stream(), tensor, 1);
    return tensor;
  };
  const GroupedProduct made{GroupedPass::Forward, "fc2 forward, even", ones({1, 1}),
                            ones({1, 4}),         ones({1, 1, 4}),     {1}};
  const ProductCheck check(stream(), made, kKey, 0);
  fill(stream(), made.y, 3);
  try {
    check.expect_right();
    FAIL() << "3 is not 4";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "fc2 forward, even: wrong product\n"
                 "  row 0 (of group 0), column 0 is 3, not 4 +- 6.1e-06\n"
                 "  seed: 77");
  }
}

}  // namespace
}  // namespace ferry::testing
