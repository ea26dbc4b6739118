#include "app/saved_step.h"

#include <gtest/gtest.h>

#include "core/check.h"

namespace ferry {
namespace {

// Two layers: attention with 10 and 1 bytes, experts with 100 (width 2) and 1000 (width 4).
PassRecords two_layers() {
  PassRecords costs;
  costs.tensors = {{"qkv", 10, 1, DType::U8},
                   {"rows", 50, 2, DType::U8},
                   {"qkv", 1, 1, DType::U8},
                   {"rows", 250, 4, DType::U8}};
  costs.records = {{.label = Label::CoreAttn, .layer = 0, .tensors = {0}},
                   {.label = Label::ExpertFc1, .layer = 0, .tensors = {1}},
                   {.label = Label::CoreAttn, .layer = 1, .tensors = {2}},
                   {.label = Label::ExpertFc1, .layer = 1, .tensors = {3}}};
  return costs;
}

// F0 F1 B0 B1: two passes under way.
SavedStep two_passes() {
  SavedStep step;
  step.actions = {{true, {0, 0}}, {true, {0, 1}}, {false, {0, 0}}, {false, {0, 1}}};
  step.chunks = {two_layers()};
  return step;
}

TEST(SavedStep, HoldsThePassesUnderWay) {
  const SavedStepMemory memory = run_step(two_passes());
  EXPECT_EQ(memory.ledger.peak(), 2 * 1111);
  EXPECT_EQ(memory.ledger.current(), 0);
  EXPECT_EQ(memory.ledger.host_peak(), 0);
  EXPECT_TRUE(memory.stashed.empty());
}

// The groups that the plan moves, and the first of the second pass back when the first one is done.
TEST(SavedStep, GroupsComeBackAcrossPasses) {
  SavedStep step = two_passes();
  step.offloaded.modules = {{Label::CoreAttn, "core_attn"}};
  const std::vector<OffloadGroup> groups{{"core_attn", 10, true}, {"core_attn", 1, false}};
  for (const PassId& pass : backward_order(step.actions)) step.moving.push_back({pass, groups});
  const SavedStepMemory memory = run_step(step);
  // In the second pass: what stays of both, and its own 10 before they leave.
  EXPECT_EQ(memory.ledger.peak(), 2 * (100 + 1 + 1000));
  EXPECT_EQ(memory.ledger.host_peak(), 20);
  // Of the first pass 10 and of both 1 while its first layer is used. The second pass's 10 are not
  // back before that was used.
  EXPECT_EQ(memory.ledger.peaks().at("core_attn"), 11);
  EXPECT_EQ(memory.ledger.current(), 0);
  step.moving.pop_back();
  EXPECT_THROW(run_step(step), Error) << "a pass without groups";
}

TEST(SavedStep, LayersLeave) {
  SavedStep step = two_passes();
  step.layers = {1, 2};
  // As the head begins, the first layer is let go.
  step.chunks[0].tensors.push_back({"x", 1, 1, DType::U8});
  step.chunks[0].records.push_back({.label = Label::LossHead, .layer = -1, .tensors = {4}});
  const SavedStepMemory memory = run_step(step);
  EXPECT_EQ(memory.ledger.host_peak(), 2 * 110);
  EXPECT_EQ(memory.ledger.now().size(), 0u);
  EXPECT_EQ(memory.ledger.peak(), 1001 + 1 + 110 + 1001) << "the second pass, before its head";
  EXPECT_EQ(memory.ledger.current(), 0);
}

TEST(SavedStep, TheStashTakesAllButWhatComesBackAtOnce) {
  SavedStep step = two_passes();
  step.stash = true;
  step.stash_capacity_factor = 2;
  const SavedStepMemory memory = run_step(step);
  ASSERT_EQ(memory.stashed.size(), 2u);
  EXPECT_EQ(memory.stashed.at({0, 1}).size(), 2u);
  // As the last layer's rows are saved, all else but vectors is in pages; and as they are used.
  EXPECT_EQ(memory.ledger.peak(), 2 * 11 + 1000);
  EXPECT_GT(memory.ledger.peak_beside(), 0);
  EXPECT_EQ(memory.ledger.current(), 0);
  step.actions = {{true, {0, 0}}, {false, {0, 0}}};
  EXPECT_EQ(run_step(step).ledger.at_peak().at("expert_fc1"), 1000);
  EXPECT_EQ(run_step(step).ledger.peak_beside(), 100) << "the first layer's is being packed";
}

}  // namespace
}  // namespace ferry
