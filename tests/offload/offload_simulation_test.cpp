#include "offload/offload_simulation.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/expect_close.h"

namespace ferry {
namespace {

PassAction F(int micro, int chunk = 0) { return {true, {chunk, micro}}; }
PassAction B(int micro, int chunk = 0) { return {false, {chunk, micro}}; }

// Passes of one chunk, in this order, each with a group of these bytes in every layer.
std::vector<PassGroups> passes_of(int num_micro, int layers, int64_t bytes) {
  std::vector<PassGroups> passes;
  for (int micro = 0; micro < num_micro; ++micro) {
    PassGroups& pass = passes.emplace_back();
    pass.pass = {0, micro};
    for (int layer = 0; layer < layers; ++layer) pass.groups.push_back({"a", bytes, true});
  }
  return passes;
}

// A pass of four groups of 10 bytes: a second each forward; backward one in use, and one more.
constexpr int64_t kBytes = 10;
OffloadConditions conditions(double bytes_per_s) {
  return {{{4.0, 8.0}}, bytes_per_s, bytes_per_s, {}};
}

TEST(OffloadSimulation, WithoutGroupsAStepIsItsPasses) {
  const std::vector<PassAction> actions{F(0), F(1), B(0), B(1)};
  const auto forecast = simulate_offload(actions, passes_of(2, 0, 0), {{{1.5, 2.5}}, 0, 0, {}});
  EXPECT_DOUBLE_EQ(forecast.step_s, 8.0);
  EXPECT_DOUBLE_EQ(forecast.step_without_s, 8.0);
  EXPECT_EQ(forecast.cost(), 0);
  EXPECT_EQ(forecast.peak_bytes, 0);
  EXPECT_TRUE(forecast.traffic.empty());
}

TEST(OffloadSimulation, WhatStaysCostsNothingAndPeaksAtTheEndOfForward) {
  auto passes = passes_of(1, 4, kBytes);
  for (OffloadGroup& group : passes[0].groups) group.offload = false;
  const auto forecast = simulate_offload(std::vector{F(0), B(0)}, passes, {{{4, 8}}, 0, 0, {}});
  EXPECT_DOUBLE_EQ(forecast.step_s, 12.0);
  EXPECT_EQ(forecast.peak_bytes, 40);
  EXPECT_EQ(forecast.saved_bytes(), 0);
  EXPECT_EQ(forecast.peak_by_module, (std::map<std::string, int64_t>{{"a", 40}}));
}

// 10 bytes/s: each copy takes a second, as long as a group's forward. Groups 0 to 2 leave at 1, 2,
// 3 and are in host memory at 2, 3, 4; group 3 comes back at once and stays.
TEST(OffloadSimulation, CopiesThatFitAreHidden) {
  const auto forecast =
      simulate_offload(std::vector{F(0), B(0)}, passes_of(1, 4, kBytes), conditions(10));
  EXPECT_DOUBLE_EQ(forecast.step_s, 12.0);
  EXPECT_EQ(forecast.d2h_bytes(), 30);
  EXPECT_EQ(forecast.h2d_bytes(), 30);
  EXPECT_EQ(forecast.peak_without_bytes, 40);
  EXPECT_EQ(forecast.peak_bytes, 10) << "each leaves when the next one is there";
  EXPECT_DOUBLE_EQ(forecast.exposed_h2d_s + forecast.exposed_d2h_s, 0.0);
}

// 2 bytes/s: each copy takes 5 seconds. Away: 1-6, 6-11, 11-16. Group 3 is used up at 5 and starts
// group 2 back: 16-21, needed at 6. Group 1: 22-27, needed at 23; group 0: 28-33, needed at 29.
TEST(OffloadSimulation, BackwardWaitsForWhatIsNotBack) {
  const auto forecast =
      simulate_offload(std::vector{F(0), B(0)}, passes_of(1, 4, kBytes), conditions(2));
  EXPECT_DOUBLE_EQ(forecast.step_s, 35.0);
  EXPECT_DOUBLE_EQ(forecast.exposed_h2d_s, 15.0 + 4.0 + 4.0);
  EXPECT_DOUBLE_EQ(forecast.exposed_d2h_s, 0.0);
  EXPECT_DOUBLE_EQ(forecast.traffic.at("a").exposed_s, 23.0);
  EXPECT_DOUBLE_EQ(forecast.cost(), 23.0 / 12.0);
  EXPECT_EQ(forecast.peak_bytes, 40) << "none is away before forward ends";
}

// The same with one copy under way at a time: at 2 group 1 leaves and waits for group 0 until 6; it
// is away at 11; group 2 leaves at 7 and waits until 11, is away at 16 and back at 21.
TEST(OffloadSimulation, ALimitOfCopiesMakesForwardWait) {
  OffloadConditions slow = conditions(2);
  slow.max_inflight = 1;
  const auto forecast = simulate_offload(std::vector{F(0), B(0)}, passes_of(1, 4, kBytes), slow);
  EXPECT_DOUBLE_EQ(forecast.exposed_d2h_s, 8.0);
  EXPECT_DOUBLE_EQ(forecast.exposed_h2d_s, 7.0 + 4.0 + 4.0);
  EXPECT_DOUBLE_EQ(forecast.step_s, 35.0);
  EXPECT_EQ(forecast.peak_bytes, 20);
  // With 0 each copy is waited for: 3 copies of 5 seconds.
  slow.max_inflight = 0;
  EXPECT_DOUBLE_EQ(
      simulate_offload(std::vector{F(0), B(0)}, passes_of(1, 4, kBytes), slow).exposed_d2h_s, 15.0);
}

TEST(OffloadSimulation, ALimitCountsEachModuleAlone) {
  auto passes = passes_of(1, 4, kBytes);
  for (size_t i = 0; i < 4; i += 2) passes[0].groups[i].module = "b";
  OffloadConditions slow = conditions(2);
  slow.max_inflight = 1;
  // Away: b, a at 1 and 2; the last of each module stays.
  const auto forecast = simulate_offload(std::vector{F(0), B(0)}, passes, slow);
  EXPECT_DOUBLE_EQ(forecast.exposed_d2h_s, 0.0);
  EXPECT_EQ(forecast.traffic.at("a").d2h_bytes, 10);
  EXPECT_EQ(forecast.traffic.at("b").d2h_bytes, 10);
}

// On one rank every pass comes back at once: it keeps the last group of each module.
TEST(OffloadSimulation, APassThatComesBackNextKeepsTheLastGroupOfEachModule) {
  const std::vector<PassAction> one_rank{F(0), B(0), F(1), B(1)};
  EXPECT_EQ(simulate_offload(one_rank, passes_of(2, 2, kBytes), conditions(10)).d2h_bytes(), 20);
  // First stage of two: only pass 0 comes back next while it goes forward.
  const std::vector<PassAction> first_stage{F(0), F(1), B(0), F(2), B(1), B(2)};
  EXPECT_EQ(simulate_offload(first_stage, passes_of(3, 2, kBytes), conditions(10)).d2h_bytes(),
            (3 * 2 - 1) * kBytes);
}

TEST(OffloadSimulation, APassWithoutTheModuleIsNotTheNextToHaveIt) {
  auto passes = passes_of(2, 2, kBytes);
  for (OffloadGroup& group : passes[0].groups) group.module = "b";
  const auto forecast =
      simulate_offload(std::vector{F(0), F(1), B(0), B(1)}, passes, conditions(10));
  EXPECT_EQ(forecast.traffic.at("a").d2h_bytes, 10) << "pass 1 is the next with a";
  EXPECT_EQ(forecast.traffic.at("b").d2h_bytes, 10);
}

// Two passes of a first stage. When pass 0 has none left, each of its groups starts one of pass 1.
TEST(OffloadSimulation, AFinishedPassStartsTheNextOneBack) {
  auto passes = passes_of(2, 4, kBytes);
  for (size_t i = 1; i < 4; ++i) passes[0].groups[i].offload = false;
  const std::vector<PassAction> actions{F(0), F(1), B(0), B(1)};
  const auto forecast = simulate_offload(actions, passes, conditions(10));
  EXPECT_EQ(forecast.d2h_bytes(), 50);
  EXPECT_DOUBLE_EQ(forecast.exposed_h2d_s, 0.0);
  // A pass that was not forward has nothing to start.
  const std::vector<PassAction> one_rank{F(0), B(0), F(1), B(1)};
  EXPECT_EQ(simulate_offload(one_rank, passes, conditions(10)).h2d_bytes(), 40);
}

TEST(OffloadSimulation, ChunksHaveTheirOwnTimes) {
  std::vector<PassGroups> passes(2);
  passes[0] = {{1, 0}, {{"a", 10, true}}};
  passes[1] = {{0, 0}, {{"a", 10, true}}};
  const std::vector<PassAction> actions{F(0, 0), F(0, 1), B(0, 1), B(0, 0)};
  const auto forecast = simulate_offload(actions, passes, {{{1, 2}, {10, 20}}, 10, 10, {}});
  EXPECT_DOUBLE_EQ(forecast.step_s, 33.0);
  EXPECT_EQ(forecast.d2h_bytes(), 10) << "chunk 1 comes back next";
}

TEST(OffloadSimulation, NothingMovesAtNoRate) {
  const std::vector<PassAction> actions{F(0), B(0)};
  EXPECT_THROW(simulate_offload(actions, passes_of(1, 2, kBytes), conditions(0)), Error);
  EXPECT_THROW(simulate_offload(std::vector{F(5)}, passes_of(1, 2, kBytes), conditions(1)), Error);
}

}  // namespace
}  // namespace ferry
