#include "offload/stash_plan.h"

#include <gmock/gmock.h>

namespace ferry::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr PoolKey kWide{DType::BF16, 64}, kNarrow{DType::BF16, 8}, kFloats{DType::F32, 8};

PassAction forward(int micro, int chunk = 0) { return {true, {chunk, micro}}; }
PassAction backward(int micro, int chunk = 0) { return {false, {chunk, micro}}; }

std::vector<std::vector<int64_t>> numbers(const std::map<PoolKey, StashPeak>& peaks) {
  std::vector<std::vector<int64_t>> all;
  for (const auto& [key, peak] : peaks) all.push_back({key.width, peak.rows, peak.average_rows});
  return all;
}
using Numbers = std::vector<std::vector<int64_t>>;

TEST(StashPlan, PeakIsThatOfTheSchedule) {
  // Two layers; rows of micro-batches 0, 1, 2.
  StashedPasses passes;
  const int64_t rows[] = {5, 30, 20};
  for (int micro = 0; micro < 3; ++micro)
    passes[{0, micro}] = {{kWide, 0, 40, rows[micro]}, {kWide, 1, 40, 10}};
  const std::vector<PassAction> one_by_one = {forward(0),  backward(0), forward(1),
                                              backward(1), forward(2),  backward(2)};
  // The last layer stays where it is.
  EXPECT_EQ(numbers(stash_peaks(one_by_one, passes, 1, 2.0)), (Numbers{{64, 30, 20}}));
  const std::vector<PassAction> two_in_flight = {forward(0), forward(1),  backward(0),
                                                 forward(2), backward(1), backward(2)};
  EXPECT_EQ(numbers(stash_peaks(two_in_flight, passes, 1, 2.0)), (Numbers{{64, 70, 80}}));
  const std::vector<PassAction> all_at_once = {forward(0),  forward(1),  forward(2),
                                               backward(0), backward(1), backward(2)};
  EXPECT_EQ(numbers(stash_peaks(all_at_once, passes, 1, 2.0)), (Numbers{{64, 85, 120}}));
}

TEST(StashPlan, PoolsAreByTypeAndWidth) {
  StashedPasses passes;
  passes[{0, 0}] = {
      {kWide, 0, 20, 3}, {kNarrow, 0, 20, 3}, {kFloats, 0, 20, 3}, {kNarrow, 1, 20, 4}};
  const std::vector<PassAction> actions = {forward(0), forward(1), backward(0), backward(1)};
  EXPECT_EQ(stash_peaks(actions, passes, 1, 1.0).size(), 3u);
  EXPECT_EQ(stash_peaks(actions, passes, 1, 1.0).at(kNarrow).rows, 7);
  EXPECT_EQ(stash_peaks(actions, passes, 1, 1.0).at(kFloats).rows, 3);
}

TEST(StashPlan, RowsOfATensorTakeWholePages) {
  StashedPasses passes;
  passes[{0, 0}] = {{kWide, 0, 20, 1}, {kWide, 0, 20, 5}, {kWide, 0, 20, 0}};
  const std::vector<PassAction> actions = {forward(0), forward(1), backward(0), backward(1)};
  // 4 + 8 + 0; three times floor(20 / 1.5) = 13 in four pages.
  EXPECT_EQ(numbers(stash_peaks(actions, passes, 4, 1.5)), (Numbers{{64, 12, 48}}));
}

TEST(StashPlan, ChunksAreOtherPasses) {
  StashedPasses passes;
  passes[{0, 0}] = {{kWide, 0, 8, 8}};
  passes[{1, 0}] = {{kWide, 0, 8, 8}};
  // Backward of chunk 1 comes at once, so nothing of it is moved.
  const std::vector<PassAction> actions = {forward(0, 0), forward(0, 1), backward(0, 1),
                                           backward(0, 0)};
  EXPECT_EQ(numbers(stash_peaks(actions, passes, 1, 1.0)), (Numbers{{64, 8, 8}}));
  EXPECT_FALSE(returns_at_once(actions, {0, 0}));
  EXPECT_TRUE(returns_at_once(actions, {1, 0}));
}

TEST(StashPlan, FactorChoosesWhatIsScaled) {
  const StashPeak peak{.rows = 100, .average_rows = 60};
  EXPECT_EQ(num_stash_pages(peak, 1.1, 1), 66);
  EXPECT_EQ(num_stash_pages(peak, -1.1, 1), 110);
  EXPECT_EQ(num_stash_pages(peak, 0, 1), 0);
  EXPECT_EQ(num_stash_pages(peak, 0.99, 64), 1);  // floor(59.4) rows
  EXPECT_EQ(num_stash_pages(peak, 1.1, 64), 2);
  EXPECT_EQ(num_stash_pages({}, 1.1, 64), 0);
}

TEST(StashPlan, KnowsWhatComesNext) {
  const std::vector<PassAction> actions = {forward(0), forward(1), backward(0), backward(1)};
  EXPECT_EQ(*next_action(actions, forward(1)), backward(0));
  EXPECT_EQ(next_action(actions, backward(1)), nullptr);
  EXPECT_THAT([&] { next_action(actions, forward(7)); },
              ThrowsMessage<Error>(
                  HasSubstr("micro-batch 7 of chunk 0 is not in the schedule of this step")));
}

}  // namespace
}  // namespace ferry::testing
