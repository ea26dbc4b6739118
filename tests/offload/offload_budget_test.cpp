#include "offload/offload_budget.h"

#include <gtest/gtest.h>

#include <random>

namespace ferry {
namespace {

// The rank `rank` of a pipeline of `num_ranks`: as many passes in flight as stages are behind.
std::vector<PassAction> one_forward_one_backward(int num_ranks, int rank, int num_micro) {
  std::vector<PassAction> actions;
  const int ahead = std::min(num_micro, num_ranks - rank - 1);
  for (int micro = 0; micro < ahead; ++micro) actions.push_back({true, {0, micro}});
  for (int micro = 0; micro < num_micro; ++micro) {
    if (micro + ahead < num_micro) actions.push_back({true, {0, micro + ahead}});
    actions.push_back({false, {0, micro}});
  }
  return actions;
}

struct Case {
  std::vector<PassAction> actions;
  std::vector<PassGroups> passes;
  OffloadConditions conditions;
};

// Random modules of random size in random layers.
Case random_case(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto between = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  Case result;
  const int num_ranks = between(1, 4), num_micro = between(1, 6);
  result.actions = one_forward_one_backward(num_ranks, between(0, num_ranks - 1), num_micro);
  const int layers = between(1, 6), modules = between(1, 4);
  std::vector<int64_t> bytes(static_cast<size_t>(modules));
  for (int64_t& size : bytes) size = between(0, 5) == 0 ? 0 : between(1, 1000);
  for (const PassId& pass : backward_order(result.actions)) {
    PassGroups& groups = result.passes.emplace_back();
    groups.pass = pass;
    for (int layer = 0; layer < layers; ++layer)
      for (int module = 0; module < modules; ++module)
        groups.groups.push_back(
            {"m" + std::to_string(module), bytes[static_cast<size_t>(module)], false});
  }
  const double forward = between(1, 20);
  result.conditions.chunks = {{forward, forward * between(1, 3)}};
  result.conditions.d2h_bytes_per_s = between(10, 2000);
  result.conditions.h2d_bytes_per_s = between(10, 2000);
  if (between(0, 3) == 0) result.conditions.max_inflight = between(0, 2);
  return result;
}

void expect_first_groups(const BudgetChoice& choice) {
  for (const PassGroups& pass : choice.passes) {
    int64_t moved = 0;
    bool stays = false;
    for (const OffloadGroup& group : pass.groups) {
      if (group.bytes == 0) {
        EXPECT_FALSE(group.offload);
        continue;
      }
      EXPECT_FALSE(stays && group.offload) << "a later group moves, an earlier one stays";
      stays |= !group.offload;
      moved += group.offload;
    }
    EXPECT_EQ(moved, choice.num_groups);
  }
}

TEST(OffloadBudget, NeverAboveTheBudgetAndTheFirstLayersFirst) {
  int some = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    const Case c = random_case(seed);
    for (const double budget : {0.0, 0.02, 0.3}) {
      const BudgetChoice choice = choose_groups(c.actions, c.passes, c.conditions, budget);
      expect_first_groups(choice);
      const OffloadForecast again = simulate_offload(c.actions, choice.passes, c.conditions);
      EXPECT_LE(again.step_s, (1 + budget) * again.step_without_s);
      EXPECT_EQ(again.step_s, choice.forecast.step_s);
      EXPECT_EQ(again.saved_bytes(), choice.forecast.saved_bytes());
      some += choice.num_groups > 0 && choice.num_groups < choice.num_candidates;
    }
  }
  EXPECT_GT(some, 100) << "cases with a choice";
}

TEST(OffloadBudget, MoreBandwidthOrBudgetSavesNoLess) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    Case c = random_case(seed);
    int64_t before = 0;
    for (const double factor : {0.5, 1.0, 1.5, 4.0}) {
      OffloadConditions faster = c.conditions;
      faster.d2h_bytes_per_s *= factor;
      faster.h2d_bytes_per_s *= factor;
      const BudgetChoice choice = choose_groups(c.actions, c.passes, faster, 0.02);
      EXPECT_GE(choice.forecast.saved_bytes(), before) << factor;
      before = choice.forecast.saved_bytes();
    }
    before = 0;
    for (const double budget : {0.0, 0.02, 0.1, 1.0}) {
      const BudgetChoice choice = choose_groups(c.actions, c.passes, c.conditions, budget);
      EXPECT_GE(choice.forecast.saved_bytes(), before) << budget;
      before = choice.forecast.saved_bytes();
    }
  }
}

TEST(OffloadBudget, NothingWithoutBandwidthAndNoMoreThanLowersThePeak) {
  const auto actions = one_forward_one_backward(2, 0, 4);
  std::vector<PassGroups> passes;
  for (const PassId& pass : backward_order(actions))
    passes.push_back({pass, {{"a", 100, false}, {"b", 0, false}, {"a", 100, true}}});
  OffloadConditions conditions{{{1, 2}}, 1e6, 1e6, {}};
  const BudgetChoice all = choose_groups(actions, passes, conditions, 0);
  EXPECT_EQ(all.num_candidates, 2);
  EXPECT_EQ(all.num_groups, 1) << "the last one is needed at once";
  EXPECT_EQ(all.forecast.d2h_bytes(), 4 * 100);
  EXPECT_GT(all.forecast.saved_bytes(), 0);
  for (double OffloadConditions::*rate :
       {&OffloadConditions::d2h_bytes_per_s, &OffloadConditions::h2d_bytes_per_s}) {
    OffloadConditions none = conditions;
    none.*rate = 0;
    const BudgetChoice choice = choose_groups(actions, passes, none, 10);
    EXPECT_EQ(choice.num_groups, 0);
    EXPECT_EQ(choice.forecast.cost(), 0);
  }
  EXPECT_EQ(
      choose_groups(actions, {passes[0], {{0, 1}, {}}, {{0, 2}, {}}, {{0, 3}, {}}}, conditions, 0)
          .num_groups,
      1)
      << "passes without groups are legal";
}

// The chunk whose passes stay longest is the first one.
TEST(OffloadBudget, TheFirstChunkIsFirst) {
  const std::vector<PassAction> actions{
      {true, {0, 0}}, {true, {1, 0}}, {false, {1, 0}}, {false, {0, 0}}};
  const std::vector<PassGroups> passes{{{1, 0}, {{"a", 100, true}, {"a", 100, true}}},
                                       {{0, 0}, {{"a", 100, true}, {"a", 100, true}}}};
  // A copy takes as long as the forward pass of a chunk.
  const OffloadConditions conditions{{{1, 1}, {1, 1}}, 100, 100, {}};
  const BudgetChoice choice = choose_groups(actions, passes, conditions, 0);
  ASSERT_GT(choice.num_groups, 0);
  EXPECT_TRUE(choice.passes[1].groups[0].offload);
  EXPECT_LT(choice.num_groups, 4);
  EXPECT_FALSE(choice.passes[0].groups[1].offload);
}

}  // namespace
}  // namespace ferry
