#include "moe/expert_rows.h"

#include <gmock/gmock.h>

#include <limits>

#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Rank 1 of 3, with experts 2 and 3 of 6. Choices of four tokens: {3, 0}, {1, 5}, {2, 3}, {4, 3}.
class ExpertRowsTest : public CpuTest {
 protected:
  ExpertRowsTest() { stream().device().set_poison_memory(true); }
  ExpertRows of_rank(std::optional<int64_t> limit,
                     const std::vector<int32_t>& choices = {3, 0, 1, 5, 2, 3, 4, 3}) {
    const Tensor chosen = from_host(stream(), "choices", choices, {std::ssize(choices) / 2, 2});
    return ExpertRows::of_rank(pass_, chosen, 6, {.ep_rank = 1, .ep_size = 3}, limit);
  }
  Tensor doubles(const std::vector<double>& values, const Shape& shape) {
    return from_host(stream(), "doubles", values, shape);
  }
  std::vector<double> values(const Tensor& tensor) { return read_back_as_double(stream(), tensor); }
  int32_t over_capacity() {
    return read_back<int32_t>(stream(), totals_.all().at("over_capacity"))[0];
  }

  static constexpr double kPadding = std::numeric_limits<double>::quiet_NaN();
  Batch batch_;
  Tape tape_;
  StepTotals totals_;
  Pass pass_{stream(), tape_, batch_, totals_, {}, true};
};

TEST_F(ExpertRowsTest, RowsOfOtherRanksAreLeftOut) {
  ExpertRows here = of_rank({});
  EXPECT_EQ(here.num_rows, -1);
  EXPECT_THAT(values(here.offsets), ElementsAre(0, 1, 4));
  EXPECT_TRUE(totals_.all().empty());
  here.num_rows = 4;
  const Tensor rows =
      here.rows_of_tokens(stream(), doubles({1, 2, 3, 4, 5, 6, 7, 8}, {4, 2}), "rows");
  EXPECT_THAT(values(rows), ElementsAre(5, 6, 1, 2, 5, 6, 7, 8));
  const Tensor numbers =
      here.numbers_of_rows(stream(), doubles({.1, .2, .3, .4, .5, .6, .7, .8}, {4, 2}));
  EXPECT_THAT(values(numbers), ElementsAre(.5, .1, .6, .8));

  const Tensor results = doubles({1, 2, 4, 8}, {4, 1});
  EXPECT_THAT(values(here.tokens_of_rows(stream(), results, {}, "y")), ElementsAre(2, 0, 5, 8));
  const Tensor residual = doubles({.5, .25, .125, .0625}, {4, 1});
  EXPECT_THAT(values(here.tokens_of_rows(stream(), results, residual, "y")),
              ElementsAre(2.5, .25, 5.125, 8.0625));
  const Tensor by_choice = here.numbers_of_choices(stream(), doubles({1, 2, 4, 8}, {4}));
  EXPECT_EQ(by_choice.shape(), (Shape{4, 2}));
  EXPECT_THAT(values(by_choice), ElementsAre(2, 0, 0, 0, 1, 4, 0, 8));
}

TEST_F(ExpertRowsTest, RowsBeyondTheLimitAreLeftOut) {
  const ExpertRows here = of_rank(3);
  EXPECT_EQ(here.num_rows, 3);
  EXPECT_THAT(values(here.offsets), ElementsAre(0, 1, 3));
  EXPECT_EQ(over_capacity(), 1);
  EXPECT_THAT(values(here.rows_of_tokens(stream(), doubles({1, 2, 3, 4}, {4, 1}), "rows")),
              ElementsAre(3, 1, 3));
  EXPECT_THAT(values(here.tokens_of_rows(stream(), doubles({1, 2, 4}, {3, 1}), {}, "y")),
              ElementsAre(2, 0, 5, 0));
  EXPECT_THAT(values(here.numbers_of_choices(stream(), doubles({1, 2, 4}, {3}))),
              ElementsAre(2, 0, 0, 0, 1, 4, 0, 0));
}

// More rows than there are slots: those not in use are never read.
TEST_F(ExpertRowsTest, PaddingIsNeverRead) {
  const ExpertRows here = of_rank(10);
  EXPECT_EQ(over_capacity(), 0);
  EXPECT_THAT(values(here.offsets), ElementsAre(0, 1, 4));
  const Tensor rows = here.rows_of_tokens(stream(), doubles({1, 2, 3, 4}, {4, 1}), "rows");
  EXPECT_EQ(rows.shape(), (Shape{10, 1}));
  EXPECT_THAT(values(rows.rows(0, 4)), ElementsAre(3, 1, 3, 4));
  std::vector<double> results(10, kPadding);
  for (size_t row = 0; row < 4; ++row) results[row] = static_cast<double>(row + 1);
  EXPECT_THAT(values(here.tokens_of_rows(stream(), doubles(results, {10, 1}), {}, "y")),
              ElementsAre(2, 0, 4, 4));
  EXPECT_THAT(values(here.numbers_of_choices(stream(), doubles(results, {10}))),
              ElementsAre(2, 0, 0, 0, 1, 3, 0, 4));
}

TEST_F(ExpertRowsTest, NoTokenMayHaveCome) {
  for (const std::optional<int64_t> limit : {std::optional<int64_t>(), std::optional<int64_t>(5)}) {
    ExpertRows here = of_rank(limit, {});
    EXPECT_THAT(values(here.offsets), ElementsAre(0, 0, 0));
    here.num_rows = limit.value_or(0);
    const Tensor none = doubles({}, {0, 2});
    const Tensor rows = here.rows_of_tokens(stream(), none, "rows");
    EXPECT_EQ(rows.shape(), (Shape{here.num_rows, 2}));
    EXPECT_EQ(here.numbers_of_rows(stream(), none).shape(), (Shape{here.num_rows}));
    EXPECT_THAT(values(here.tokens_of_rows(stream(), rows, none, "y")), IsEmpty());
    EXPECT_EQ(here.numbers_of_choices(stream(), rows.reshape({rows.numel()})).shape(),
              (Shape{0, 2}));
  }
}

}  // namespace
}  // namespace ferry::testing
