#include "app/saved_groups.h"

#include <gtest/gtest.h>

#include <array>

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
  const OffloadedTensors offloaded{
      .modules = {{Label::CoreAttn, "core_attn"}, {Label::ExpertFc1, "expert_fc1"}}};
  const auto groups = offload_groups(records(), offloaded);
  EXPECT_EQ(modules_of(groups),
            (std::vector<std::string>{"core_attn", "expert_fc1", "core_attn", "expert_fc1"}));
  // q, k, v and logsumexp; the output is the projection's.
  EXPECT_EQ(groups[0].bytes, kTokens * 4 * (24 + 2));
  EXPECT_EQ(groups[1].bytes, kTokens * 4 * 2 * 8);
  for (const OffloadGroup& group : groups) EXPECT_TRUE(group.offload);
}

TEST(SavedGroups, SmallTensorsStay) {
  const OffloadedTensors offloaded{.modules = {{Label::CoreAttn, "core_attn"}},
                                   .min_tensor_elements = kTokens * 24};
  EXPECT_EQ(offload_groups(records(), offloaded)[0].bytes, kTokens * 4 * 24) << "not logsumexp";
  const OffloadedTensors larger{.modules = {{Label::CoreAttn, "core_attn"}},
                                .min_tensor_elements = kTokens * 24 + 1};
  EXPECT_EQ(offload_groups(records(), larger)[0].bytes, 0);
}

// The groups of one pass in which those of `moves` move.
struct OnePass {
  OnePass(PassRecords records, OffloadedTensors modules, std::function<bool(size_t)> moves)
      : costs(std::move(records)),
        offloaded(std::move(modules)),
        tape(costs.tensors, ledger),
        groups(offloaded, tape, ledger, std::move(moves), [this] { ++num_others; }) {
    save_pass(costs, tape, movers);
  }
  void load() { load_pass(tape, movers); }

  PassRecords costs;
  OffloadedTensors offloaded;
  SavedLedger ledger;
  SavedTape tape;
  SavedGroups groups;
  std::array<SavedMover*, 1> movers{&groups};
  int num_others = 0;
};

const auto kAll = [](size_t) { return true; };

// Groups of norms begin before the modules of their branch and leave after them.
TEST(SavedGroups, NormsLeaveAfterTheirBranch) {
  const PassRecords costs = records();
  const OffloadedTensors offloaded{.modules = {{Label::AttnNorm, "attn_norm"},
                                               {Label::QkvLinear, "qkv_linear"},
                                               {Label::MlpNorm, "mlp_norm"}}};
  const std::vector<std::string> layer{"attn_norm", "qkv_linear", "mlp_norm"};
  std::vector<std::string> both = layer;
  both.insert(both.end(), layer.begin(), layer.end());
  EXPECT_EQ(modules_of(offload_groups(costs, offloaded)), both);

  std::vector<size_t> order;
  OnePass pass(costs, offloaded, [&](size_t group) {
    order.push_back(group);
    return true;
  });
  EXPECT_EQ(order, (std::vector<size_t>{1, 0, 2, 4, 3, 5}));
  EXPECT_EQ(pass.ledger.now().count("attn_norm"), 0u);
  pass.load();
  EXPECT_EQ(pass.ledger.current(), 0);
}

TEST(SavedGroups, OnlyGroupsThatMoveAreGone) {
  OnePass pass(records(), {.modules = {{Label::CoreAttn, "core_attn"}}},
               [](size_t group) { return group == 0; });
  EXPECT_EQ(pass.ledger.now().at("core_attn"), kTokens * 4 * (24 + 2)) << "of one layer of two";
  EXPECT_TRUE(pass.groups.groups()[0].offload);
  EXPECT_FALSE(pass.groups.groups()[1].offload);
}

TEST(SavedGroups, OneComesBackForEachThatWasUsed) {
  const PassRecords costs = records();
  OnePass pass(costs, {.modules = {{Label::CoreAttn, "core_attn"}}}, kAll);
  EXPECT_EQ(pass.ledger.now().count("core_attn"), 0u);
  EXPECT_EQ(pass.ledger.host_peak(), 2 * kTokens * 4 * (24 + 2));
  std::vector<int64_t> held;  // by core_attn after each load of one
  while (!pass.tape.empty()) {
    const bool is_attention = pass.tape.newest().label == Label::CoreAttn;
    const bool is_next = pass.tape.newest().label == Label::QkvLinear;
    pass.groups.loading(pass.tape.newest());
    pass.tape.load();
    const auto now = pass.ledger.now();
    if (is_attention) {
      EXPECT_FALSE(now.contains("core_attn") && pass.tape.newest().layer == 0) << "used";
    }
    if (is_next) held.push_back(now.contains("core_attn") ? now.at("core_attn") : 0);
  }
  pass.groups.backward_done();
  // The first layer's is on its way as soon as the last layer's was used.
  EXPECT_EQ(held, (std::vector<int64_t>{kTokens * 4 * (24 + 2), 0}));
  EXPECT_EQ(pass.num_others, 1) << "then one of the next pass";
}

TEST(SavedGroups, AnotherPassMayStartOneBackThatWentForward) {
  OnePass pass(records(), {.modules = {{Label::CoreAttn, "core_attn"}}}, kAll);
  pass.groups.reload_newest();
  EXPECT_EQ(pass.ledger.now().at("core_attn"), kTokens * 4 * (24 + 2));
  pass.groups.reload_newest();
  pass.groups.reload_newest();
  EXPECT_EQ(pass.ledger.now().at("core_attn"), 2 * kTokens * 4 * (24 + 2)) << "there is no more";
}

TEST(SavedGroups, ACheckpointHasNoGroupsInside) {
  SavedPolicies policies;
  policies.recompute.modules = {Label::Moe};
  const OffloadedTensors offloaded{.modules = {{Label::ExpertFc1, "expert_fc1"}}};
  EXPECT_TRUE(offload_groups(records(policies), offloaded).empty());
}

}  // namespace
}  // namespace ferry
