#include "app/saved_groups.h"

#include <gtest/gtest.h>

namespace ferry {
namespace {

// Two MoE layers of hidden size 8 in fp32.
GptConfig two_layers() {
  GptConfig config;
  config.model.layers = 2;
  config.model.hidden = 8;
  config.model.heads = config.model.kv_heads = 2;
  config.model.head_dim = 4;
  config.model.vocab = 32;
  config.model.seq = 10;
  config.model.precision = "fp32";
  config.moe.experts = 4;
  config.moe.top_k = 2;
  config.moe.ffn = 12;
  return config;
}

constexpr int64_t kTokens = 10;

PassRecords records(const SavedPolicies& policies = {}) {
  return pass_records(two_layers(), {true, 0, 2, true}, kTokens, {}, policies);
}

std::vector<std::string> modules_of(const std::vector<OffloadGroup>& groups) {
  std::vector<std::string> modules;
  for (const OffloadGroup& group : groups) modules.push_back(group.module);
  return modules;
}

TEST(SavedGroups, OneOfEachModuleInEachLayer) {
  const MovedTensors moved{
      .modules = {{Label::CoreAttn, "core_attn"}, {Label::ExpertFc1, "expert_fc1"}}};
  const auto groups = offload_groups(records(), moved);
  EXPECT_EQ(modules_of(groups),
            (std::vector<std::string>{"core_attn", "expert_fc1", "core_attn", "expert_fc1"}));
  // q, k, v and logsumexp; the output is the projection's.
  EXPECT_EQ(groups[0].bytes, kTokens * 4 * (24 + 2));
  EXPECT_EQ(groups[1].bytes, kTokens * 4 * 2 * 8);
  for (const OffloadGroup& group : groups) EXPECT_TRUE(group.offload);
}

TEST(SavedGroups, SmallTensorsStay) {
  const MovedTensors moved{.modules = {{Label::CoreAttn, "core_attn"}},
                           .min_tensor_elements = kTokens * 24};
  EXPECT_EQ(offload_groups(records(), moved)[0].bytes, kTokens * 4 * 24) << "not logsumexp";
  const MovedTensors larger{.modules = {{Label::CoreAttn, "core_attn"}},
                            .min_tensor_elements = kTokens * 24 + 1};
  EXPECT_EQ(offload_groups(records(), larger)[0].bytes, 0);
}

// Groups of norms begin before the modules of their branch and leave after them.
TEST(SavedGroups, NormsLeaveAfterTheirBranch) {
  const PassRecords costs = records();
  const MovedTensors moved{.modules = {{Label::AttnNorm, "attn_norm"},
                                       {Label::QkvLinear, "qkv_linear"},
                                       {Label::MlpNorm, "mlp_norm"}}};
  const std::vector<std::string> layer{"attn_norm", "qkv_linear", "mlp_norm"};
  std::vector<std::string> both = layer;
  both.insert(both.end(), layer.begin(), layer.end());
  EXPECT_EQ(modules_of(offload_groups(costs, moved)), both);

  SavedLedger ledger;
  SavedTape tape(costs.tensors, ledger);
  std::vector<size_t> order;
  SavedForward forward(costs, moved, tape, [&](size_t group) {
    order.push_back(group);
    return true;
  });
  forward.run(false);
  EXPECT_EQ(order, (std::vector<size_t>{1, 0, 2, 4, 3, 5}));
  EXPECT_EQ(ledger.now().count("attn_norm"), 0u);
  while (!tape.empty()) tape.load();
  EXPECT_EQ(ledger.current(), 0);
}

TEST(SavedGroups, OnlyGroupsThatMoveAreGone) {
  const PassRecords costs = records();
  const MovedTensors moved{.modules = {{Label::CoreAttn, "core_attn"}}};
  SavedLedger ledger;
  SavedTape tape(costs.tensors, ledger);
  SavedForward forward(costs, moved, tape, [](size_t group) { return group == 0; });
  forward.run(false);
  EXPECT_EQ(ledger.now().at("core_attn"), kTokens * 4 * (24 + 2)) << "of one layer of two";
  EXPECT_TRUE(forward.groups()[0].offload);
  EXPECT_FALSE(forward.groups()[1].offload);
}

TEST(SavedGroups, ACheckpointHasNoGroupsInside) {
  SavedPolicies policies;
  policies.recompute.modules = {Label::Moe};
  const MovedTensors moved{.modules = {{Label::ExpertFc1, "expert_fc1"}}};
  EXPECT_TRUE(offload_groups(records(policies), moved).empty());
}

TEST(SavedGroups, LayersAsGroups) {
  const PassRecords costs = records();
  const auto groups = layer_groups(costs, 1);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_TRUE(groups[0].offload);
  EXPECT_FALSE(groups[1].offload);
  EXPECT_EQ(groups[0].module, "layer");
  EXPECT_EQ(groups[0].bytes, groups[1].bytes);
  SavedLedger ledger;
  SavedTape tape(costs.tensors, ledger);
  SavedForward(costs, {}, tape, [](size_t) { return true; }).run(false);
  const int64_t head = kTokens * 4 * (8 + 1 + 8);
  EXPECT_EQ(ledger.current(), 2 * groups[0].bytes + head);
}

TEST(SavedGroups, TheStashLeavesTheLastLayerIfItsBackwardIsNext) {
  const PassRecords costs = records();
  const MovedTensors moved{.stash = true};
  const int64_t experts_of_layer = kTokens * 2 * 4 * (8 + 24 + 1 + 12);
  for (const bool backward_is_next : {true, false}) {
    SavedLedger ledger;
    SavedTape tape(costs.tensors, ledger);
    SavedForward forward(costs, moved, tape, [](size_t) { return true; });
    forward.run(backward_is_next);
    EXPECT_EQ(forward.stashed(), experts_of_layer * (backward_is_next ? 1 : 2));
    EXPECT_EQ(ledger.now().contains("expert_fc1"), backward_is_next);
  }
}

}  // namespace
}  // namespace ferry
