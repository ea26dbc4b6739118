#include "app/model/saved_records.h"

#include <gtest/gtest.h>

#include "app/model/cost_model.h"

namespace ferry {
namespace {

// A dense layer and a MoE layer with a shared expert and its gate; heads 2 and 1 of 4, in bf16.
GptConfig tiny() {
  GptConfig config;
  config.model.layers = 2;
  config.model.hidden = 8;
  config.model.heads = 2;
  config.model.kv_heads = 1;
  config.model.head_dim = 4;
  config.model.ffn = 16;
  config.model.vocab = 32;
  config.model.seq = 10;
  config.model.precision = "bf16";
  config.moe.experts = 4;
  config.moe.top_k = 2;
  config.moe.ffn = 12;
  config.moe.layer_freq = {0, 1};
  config.moe.shared_ffn = 6;
  config.moe.shared_gate = true;
  return config;
}

std::vector<std::string_view> labels(const std::vector<RecordCost>& records) {
  std::vector<std::string_view> names;
  for (const RecordCost& record : records) names.push_back(name_of(record.label));
  return names;
}

using Names = std::vector<std::string_view>;
const ModelPart kDense{false, 0, 1, false}, kMoe{false, 1, 1, false};

std::map<std::string_view, int64_t> bytes(const GptConfig& config, const ModelPart& part,
                                          const ModuleShares& shares = {},
                                          const SavedPolicies& policies = {}) {
  std::map<std::string_view, int64_t> sizes;
  for (const auto& [label, cost] : kept_costs(pass_records(config, part, 12, shares, policies)))
    sizes[name_of(label)] = cost.bytes_per_token;
  return sizes;
}

TEST(SavedRecords, AreInTheOrderOfForward) {
  GptConfig config = tiny();
  EXPECT_EQ(labels(pass_records(config, kDense, 1).records),
            (Names{"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "mlp"}));
  config.model.qk_norm = "head";
  EXPECT_EQ(labels(pass_records(config, {true, 1, 1, true}, 1).records),
            (Names{"attn_norm", "qkv_linear", "qk_norm", "core_attn", "attn_proj", "mlp_norm",
                   "router", "shared_experts", "shared_experts", "expert_fc1", "moe_act",
                   "expert_fc2", "final_norm", "loss_head"}));
  config.moe.fused_experts = true;
  config.moe.shared_ffn = 0;
  EXPECT_EQ(labels(pass_records(config, kMoe, 1).records).back(), "fused_group_mlp");
}

TEST(SavedRecords, BytesByHand) {
  const auto dense = bytes(tiny(), kDense);
  EXPECT_EQ(dense.at("attn_norm"), 12 * (2 * 8 + 4));
  EXPECT_EQ(dense.at("qkv_linear"), 12 * 2 * 8);
  EXPECT_EQ(dense.at("core_attn"), 12 * (2 * 16 + 4 * 2));
  EXPECT_EQ(dense.at("attn_proj"), 12 * 2 * 8);
  EXPECT_EQ(dense.at("mlp_norm"), 12 * (2 * 8 + 4));
  EXPECT_EQ(dense.at("mlp"), 12 * 2 * (8 + 2 * 16 + 16));
  const auto moe = bytes(tiny(), kMoe);
  EXPECT_EQ(moe.at("router"), 12 * 4 * (2 + 2 + 4 + 1)) << "its input is the shared expert's";
  EXPECT_EQ(moe.at("shared_experts"), 12 * 2 * (8 + 2 * 6 + 6 + 8 + 1));
  EXPECT_EQ(moe.at("expert_fc1"), 12 * 2 * 2 * 8);
  EXPECT_EQ(moe.at("moe_act"), 12 * 2 * (2 * 24 + 4));
  EXPECT_EQ(moe.at("expert_fc2"), 12 * 2 * 2 * 12);
  const auto head = bytes(tiny(), {false, 2, 0, true});
  EXPECT_EQ(head.at("final_norm"), 12 * (2 * 8 + 4));
  EXPECT_EQ(head.at("loss_head"), 12 * 2 * 8);
}

TEST(SavedRecords, RanksShareWhatIsInside) {
  GptConfig config = tiny();
  config.model.kv_heads = 2;
  config.model.qk_norm = "full";
  const auto whole = bytes(config, kMoe);
  const auto plain = bytes(config, kMoe, {.tensor = 2});
  EXPECT_EQ(plain.at("qkv_linear"), whole.at("qkv_linear"));
  EXPECT_EQ(plain.at("attn_proj"), whole.at("attn_proj") / 2);
  EXPECT_EQ(plain.at("qk_norm"), 12 * (2 * 12 + 4 * 2 + 4 * 2)) << "1/rms and sums of all ranks";
  EXPECT_EQ(plain.at("router"), whole.at("router") / 2);
  EXPECT_EQ(plain.at("shared_experts"), whole.at("shared_experts") / 2 + 0);
  const auto sequence = bytes(config, kMoe, {.tensor = 2, .sequence = true});
  EXPECT_EQ(sequence.at("qkv_linear"), whole.at("qkv_linear") / 2);
  EXPECT_EQ(sequence.at("mlp_norm"), whole.at("mlp_norm") / 2);
  const auto experts = bytes(config, kMoe, {.tensor = 2, .expert = 2, .expert_tensor = 2});
  EXPECT_EQ(experts.at("expert_fc1"), whole.at("expert_fc1"));
  EXPECT_EQ(experts.at("expert_fc2"), whole.at("expert_fc2") / 2);
}

TEST(SavedRecords, ACapacityPadsRowsThatComeFromOtherRanks) {
  GptConfig config = tiny();
  config.moe.rank_capacity_factor = 2.0;
  const auto rows = [&](int64_t tokens, const ModuleShares& shares) {
    return kept_costs(pass_records(config, kMoe, tokens, shares))
               .at(Label::ExpertFc1)
               .bytes_per_token /
           (2 * 8);
  };
  EXPECT_EQ(rows(12, {}), 24) << "one rank has exactly its own";
  EXPECT_EQ(rows(64, {.expert = 2}), 256);
  EXPECT_EQ(rows(65, {.expert = 2}), 384) << "a multiple of the kernel's tile";
}

// Experts on one rank save the output of the norm, which the router saved before them, and the
// order of their rows. Everybody else copies, and keeps the copies as without the key.
TEST(SavedRecords, ExpertsOnOneRankReadTokensInPlace) {
  GptConfig config = tiny();
  const auto copying = bytes(config, kMoe);
  config.moe.gather = true;
  auto want = copying;
  want["shared_experts"] -= 12 * 2 * 8;  // its input is the experts' now
  want["expert_fc1"] = 12 * (2 * 8 + 2 * 4);
  EXPECT_EQ(bytes(config, kMoe), want);
  for (const ModuleShares& shares :
       {ModuleShares{.expert = 2}, ModuleShares{.tensor = 2, .expert_tensor = 2}}) {
    GptConfig off = config;
    off.moe.gather = false;
    EXPECT_FALSE(gathers_rows(config.moe, shares));
    EXPECT_EQ(bytes(config, kMoe, shares), bytes(off, kMoe, shares));
  }
  EXPECT_TRUE(gathers_rows(config.moe, {.tensor = 2})) << "each rank has all experts";
  config.moe.gather = false;
  EXPECT_FALSE(gathers_rows(config.moe, {}));
}

TEST(SavedRecords, RowsInPlaceLeaveNothingForMoePermuteToMakeAgain) {
  GptConfig config = tiny();
  config.moe.gather = true;
  const SavedPolicies permute{{Label::MoePermute}, {}};
  EXPECT_EQ(bytes(config, kMoe, {}, permute), bytes(config, kMoe));
  EXPECT_NE(bytes(config, kMoe, {.expert = 2}, permute), bytes(config, kMoe, {.expert = 2}));
}

// OLMoE-1B-7B (arXiv 2409.02060): the table of docs/activation_memory.md.
TEST(SavedRecords, BytesOfAnOlmoeLayer) {
  GptConfig config;
  config.model.layers = 1;
  config.model.hidden = 2048;
  config.model.heads = config.model.kv_heads = 16;
  config.model.head_dim = 128;
  config.model.seq = 4096;
  config.model.qk_norm = "full";
  config.model.precision = "bf16";
  config.moe.experts = 64;
  config.moe.top_k = 8;
  config.moe.ffn = 1024;
  using Table = std::map<std::string_view, int64_t>;
  const auto table = [&](bool gather, const std::set<Label>& discarded) {
    config.moe.gather = gather;
    Table bytes;
    for (const auto& [label, cost] :
         kept_costs(pass_records(config, {false, 0, 1, false}, 1, {}, {discarded, {}}))) {
      bytes[name_of(label)] = cost.bytes_per_token;
      bytes["total"] += cost.bytes_per_token;
    }
    return bytes;
  };
  Table want{{"attn_norm", 4100},    {"qkv_linear", 4096},   {"qk_norm", 12'296},
             {"core_attn", 12'352},  {"attn_proj", 4096},    {"mlp_norm", 4100},
             {"router", 4420},       {"expert_fc1", 32'768}, {"moe_act", 32'800},
             {"expert_fc2", 16'384}, {"total", 127'412}};
  EXPECT_EQ(table(false, {}), want);
  want["router"] = 324;  // the output of the norm is the experts' now
  want["expert_fc1"] = 4096 + 32;
  want["total"] = 94'676;
  EXPECT_EQ(table(true, {}), want);
  want.erase("qkv_linear");
  want.erase("expert_fc2");
  want["core_attn"] = 64;
  want["expert_fc1"] = 32;
  want["total"] = 57'812;
  EXPECT_EQ(table(true, {Label::Layernorm, Label::MoeAct}), want);
  EXPECT_EQ(table(true, {Label::Layernorm, Label::MoeAct, Label::MoePermute}), want);
  want["expert_fc1"] = 32'768;
  want["total"] = 90'548;
  EXPECT_EQ(table(false, {Label::Layernorm, Label::MoeAct}), want);
  want.erase("expert_fc1");
  want["total"] = 57'780;
  EXPECT_EQ(table(false, {Label::Layernorm, Label::MoeAct, Label::MoePermute}), want);
}

TEST(SavedRecords, DiscardedTensorsAreRebuiltFromTheRecordBefore) {
  GptConfig config = tiny();
  config.model.qk_norm = "head";
  config.moe.shared_ffn = 0;
  const auto kept = bytes(config, kMoe, {}, {{Label::Layernorm, Label::MoeAct}, {}});
  EXPECT_FALSE(kept.contains("qkv_linear"));
  EXPECT_FALSE(kept.contains("expert_fc2"));
  EXPECT_EQ(kept.at("core_attn"), 12 * 4 * 2) << "only logsumexp";
  EXPECT_EQ(kept.at("router"), bytes(config, kMoe).at("router") - 12 * 2 * 8);
  EXPECT_EQ(bytes(config, kMoe, {}, {{Label::MoeAct}, {}}).at("qkv_linear"), 12 * 2 * 8);
}

TEST(SavedRecords, CheckpointsKeepTheirInput) {
  SavedPolicies policies;
  policies.recompute.modules = {Label::CoreAttn, Label::Mlp, Label::Moe};
  EXPECT_EQ(bytes(tiny(), kDense, {}, policies).at("core_attn"), 12 * 2 * 16);
  EXPECT_EQ(bytes(tiny(), kDense, {}, policies).at("mlp"), 12 * 2 * 8);
  const PassRecords moe = pass_records(tiny(), kMoe, 12, {}, policies);
  EXPECT_EQ(moe.records.back().label, Label::Moe);
  EXPECT_EQ(labels(moe.records.back().again), (Names{"router", "shared_experts", "shared_experts",
                                                     "expert_fc1", "moe_act", "expert_fc2"}));
  // Inside of a checkpoint nothing is discarded, and shared experts are a checkpoint of their own.
  policies.discarded = {Label::MoeAct};
  policies.recompute.modules.insert(Label::SharedExperts);
  const PassRecords nested = pass_records(tiny(), kMoe, 12, {}, policies);
  EXPECT_TRUE(nested.records.back().again[3].rebuilt.empty());
  EXPECT_EQ(nested.records.back().again[1].again.size(), 2u);
}

TEST(SavedRecords, WholeLayersInCheckpoints) {
  GptConfig config = tiny();
  config.model.layers = 5;
  config.moe.layer_freq = {0};
  const auto inputs = [&](GptRecompute::Layers layers, int64_t num_layers, bool distribute,
                          const ModuleShares& shares) {
    SavedPolicies policies;
    policies.recompute = {{}, layers, num_layers, distribute};
    std::vector<size_t> records_of_checkpoints;
    const PassRecords costs = pass_records(config, {true, 0, 5, false}, 12, shares, policies);
    int64_t input_bytes = 0;
    for (const RecordCost& record : costs.records)
      if (record.label == Label::Layer) {
        records_of_checkpoints.push_back(record.again.size());
        input_bytes = costs.tensors[record.tensors[0]].bytes();
      }
    return std::pair(records_of_checkpoints, input_bytes);
  };
  using Layers = GptRecompute::Layers;
  using Sizes = std::vector<size_t>;
  EXPECT_EQ(inputs(Layers::Uniform, 2, false, {}), std::pair(Sizes({12, 12, 6}), int64_t{192}));
  EXPECT_EQ(inputs(Layers::Block, 2, false, {}).first, Sizes({6, 6}));
  EXPECT_EQ(inputs(Layers::Block, 9, false, {}).first.size(), 5u);
  EXPECT_EQ(inputs(Layers::Uniform, 5, true, {.tensor = 2}), std::pair(Sizes({30}), int64_t{96}));
  EXPECT_EQ(inputs(Layers::Uniform, 5, false, {.tensor = 2}).second, 192);
  EXPECT_EQ(inputs(Layers::Uniform, 5, false, {.tensor = 2, .sequence = true}).second, 96);
}

}  // namespace
}  // namespace ferry
