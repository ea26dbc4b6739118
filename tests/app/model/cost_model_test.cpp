#include "app/model/cost_model.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "layers/loss_head.h"

namespace ferry {
namespace {

GptConfig olmoe_1b_7b() {
  GptConfig config;
  config.model.layers = 16;
  config.model.hidden = 2048;
  config.model.heads = 16;
  config.model.vocab = 50304;
  config.model.seq = 4096;
  config.model.qk_norm = "full";
  config.model.tie_embeddings = false;
  config.moe.experts = 64;
  config.moe.top_k = 8;
  config.moe.ffn = 1024;
  derive_defaults(config.model, config.moe);
  return config;
}

GptConfig qwen3_30b_a3b() {
  GptConfig config;
  config.model.layers = 48;
  config.model.hidden = 2048;
  config.model.heads = 32;
  config.model.kv_heads = 4;
  config.model.head_dim = 128;
  config.model.vocab = 151936;
  config.model.seq = 4096;
  config.model.qk_norm = "head";
  config.model.tie_embeddings = false;
  config.moe.experts = 128;
  config.moe.top_k = 8;
  config.moe.ffn = 768;
  derive_defaults(config.model, config.moe);
  return config;
}

GptConfig mixtral_8x7b() {
  GptConfig config;
  config.model.layers = 32;
  config.model.hidden = 4096;
  config.model.heads = 32;
  config.model.kv_heads = 8;
  config.model.vocab = 32000;
  config.model.seq = 4096;
  config.model.tie_embeddings = false;
  config.moe.experts = 8;
  config.moe.top_k = 2;
  config.moe.ffn = 14336;
  derive_defaults(config.model, config.moe);
  return config;
}

// hidden 8, 2 heads of 4, one dense layer of width 16 and one MoE layer of 4 experts of width 12.
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
  config.model.precision = "fp32";
  config.moe.experts = 4;
  config.moe.top_k = 2;
  config.moe.ffn = 12;
  config.moe.layer_freq = {0, 1};
  config.moe.shared_ffn = 6;
  config.moe.shared_gate = true;
  return config;
}

TEST(CostModel, PublishedParameterTotals) {
  EXPECT_EQ(count_parameters(olmoe_1b_7b()).total(), 6'919'161'856);
  EXPECT_EQ(count_parameters(qwen3_30b_a3b()).total(), 30'532'122'624);
  EXPECT_EQ(count_parameters(mixtral_8x7b()).total(), 46'702'792'704);
}

TEST(CostModel, PublishedActiveParameters) {
  EXPECT_NEAR(static_cast<double>(count_parameters(olmoe_1b_7b()).active()), 1.282e9, 5e5);
  EXPECT_NEAR(static_cast<double>(count_parameters(qwen3_30b_a3b()).active()), 3.353e9, 5e5);
  EXPECT_NEAR(static_cast<double>(count_parameters(mixtral_8x7b()).active()), 12.88e9, 5e6);
}

TEST(CostModel, FlopsPerToken) {
  EXPECT_NEAR(flops_per_token(olmoe_1b_7b()).total(), 7.878e9, 5e5);
  EXPECT_NEAR(flops_per_token(qwen3_30b_a3b()).total(), 23.08e9, 5e6);
  EXPECT_NEAR(flops_per_token(mixtral_8x7b()).total(), 79.71e9, 5e6);
}

TEST(CostModel, ParametersOfEachCategoryByHand) {
  const ParameterCount count = count_parameters(tiny());
  EXPECT_EQ(count.embedding, 32 * 8);
  EXPECT_EQ(count.head, 0);
  EXPECT_EQ(count.attention, 2 * 8 * (8 + 4 + 4 + 8));
  EXPECT_EQ(count.dense_mlp, 3 * 8 * 16);
  EXPECT_EQ(count.experts, 4 * 3 * 8 * 12);
  EXPECT_EQ(count.active_experts, 2 * 3 * 8 * 12);
  EXPECT_EQ(count.shared_experts, 3 * 8 * 6 + 8);
  EXPECT_EQ(count.router, 4 * 8);
  EXPECT_EQ(count.norms, 2 * 2 * 8 + 8);
  EXPECT_EQ(count.active(), count.total() - 2 * 3 * 8 * 12);
}

TEST(CostModel, QkNormParameters) {
  GptConfig config = tiny();
  const int64_t without = count_parameters(config).norms;
  config.model.qk_norm = "head";
  EXPECT_EQ(count_parameters(config).norms, without + 2 * (4 + 4));
  config.model.qk_norm = "full";
  EXPECT_EQ(count_parameters(config).norms, without + 2 * (8 + 4));
}

TEST(CostModel, TiedEmbeddingsSaveParametersAndNoWork) {
  GptConfig config = tiny();
  const ParameterCount tied = count_parameters(config);
  const double tied_flops = flops_per_token(config).total();
  config.model.tie_embeddings = false;
  EXPECT_EQ(count_parameters(config).total(), tied.total() + 32 * 8);
  EXPECT_EQ(flops_per_token(config).total(), tied_flops);
}

TEST(CostModel, CausalAttentionCountsHalf) {
  // Two layers, 2 heads of 4, 10 tokens: forward 2 products of 2 * 8 * 10, halved, times three.
  EXPECT_EQ(flops_per_token(tiny()).attention, 2 * (2 * 2 * 8 * 10) / 2 * 3);
}

int64_t layer_bytes(const GptConfig& config, bool is_moe_layer, const ModuleShares& shares = {}) {
  int64_t bytes = 0;
  for (const ActivationCost& cost : activation_costs(config, is_moe_layer, shares))
    bytes += cost.bytes_per_token;
  return bytes;
}

TEST(CostModel, ActivationCostsAreOfOneToken) {
  // Norm inputs and 1/rms, qkv input, q k v and logsumexp, attention output; the MLP's input,
  // gate, up and activation.
  EXPECT_EQ(layer_bytes(tiny(), false), 4 * ((8 + 1) + 8 + (16 + 2) + 8 + (8 + 1) + (8 + 3 * 16)));
  GptConfig dense = tiny();
  dense.moe.layer_freq = {0, 0};
  EXPECT_TRUE(activation_costs(dense, true).empty());
}

TEST(CostModel, ActivationCostsNameTheTensorsOfAModule) {
  for (const ActivationCost& cost : activation_costs(tiny(), true)) {
    if (cost.module == "attn_proj") {
      EXPECT_EQ(cost.name, "input");
    }
    if (cost.module == "moe_act") {
      EXPECT_EQ(cost.name, "gate, up, probability");
    }
  }
}

TEST(CostModel, PoliciesLeaveOutWhatIsNotKept) {
  const int64_t all = layer_bytes(tiny(), false);
  int64_t kept = 0;
  for (const ActivationCost& cost : activation_costs(tiny(), false, {}, {{Label::Layernorm}, {}}))
    kept += cost.bytes_per_token;
  EXPECT_EQ(kept, all - 2 * 4 * 8) << "the outputs of both norms";
}

TEST(CostModel, ExpertRowsScaleWithTopK) {
  GptConfig config = tiny();
  const auto bytes_of = [&](std::string_view module) {
    int64_t bytes = 0;
    for (const ActivationCost& cost : activation_costs(config, true)) {
      if (cost.module == module) bytes += cost.bytes_per_token;
    }
    return bytes;
  };
  EXPECT_EQ(bytes_of("expert_fc1"), 4 * 2 * 8);
  EXPECT_EQ(bytes_of("moe_act"), 2 * 4 * (2 * 12 + 1));
  EXPECT_EQ(bytes_of("expert_fc2"), 2 * 4 * 12);
  config.moe.top_k = 4;
  EXPECT_EQ(bytes_of("expert_fc1"), 4 * 4 * 8);
}

// The published forward operations per token and layer, in millions.
TEST(CostModel, ForwardFlopsOfALayer) {
  EXPECT_NEAR(forward_flops(olmoe_1b_7b(), true).total(), 151e6, 1e6);
  EXPECT_NEAR(forward_flops(qwen3_30b_a3b(), true).total(), 147e6, 1e6);
  EXPECT_NEAR(forward_flops(mixtral_8x7b(), true).total(), 822e6, 1e6);
  // Forward and backward of all layers and the head are the operations of a step.
  const GptConfig config = tiny();
  const double layers = forward_flops(config, false).total() + forward_flops(config, true).total();
  EXPECT_DOUBLE_EQ(3 * (layers + 2 * 32 * 8), flops_per_token(config).total());
}

TEST(CostModel, BackwardTakesTwiceForwardAndWhatIsRecomputed) {
  const GptConfig config = tiny();
  const LayerFlops dense = forward_flops(config, false), moe = forward_flops(config, true);
  const auto times = [&](const GptRecompute& recompute, const ModuleShares& shares = {}) {
    return pass_times(config, {true, 0, 2, false}, 10, shares, recompute, 5.0);
  };
  const double forward = 2 * (dense.total() + moe.total());
  EXPECT_DOUBLE_EQ(times({}).forward_s, forward);
  EXPECT_DOUBLE_EQ(times({}).backward_s, 2 * forward);
  EXPECT_DOUBLE_EQ(times({}, {.tensor = 2}).forward_s, forward / 2);
  const auto again = [&](const GptRecompute& recompute) {
    EXPECT_DOUBLE_EQ(times(recompute).forward_s, forward);
    return times(recompute).backward_s - 2 * forward;
  };
  EXPECT_NEAR(again({{}, GptRecompute::Layers::Uniform, 1, false}), forward, 1e-9);
  EXPECT_NEAR(again({{}, GptRecompute::Layers::Block, 1, false}), 2 * dense.total(), 1e-9);
  EXPECT_NEAR(again({.modules = {Label::CoreAttn}}),
              2 * (dense.core_attention + moe.core_attention), 1e-9);
  EXPECT_NEAR(again({.modules = {Label::Mlp}}), 2 * dense.feed_forward, 1e-9);
  EXPECT_NEAR(again({.modules = {Label::Moe, Label::SharedExperts}}), 2 * moe.feed_forward, 1e-9);
  EXPECT_NEAR(again({.modules = {Label::SharedExperts}}), 2 * moe.shared_experts, 1e-9);
  const double head = pass_times(config, {false, 2, 0, true}, 10, {}, {}, 5.0).forward_s;
  EXPECT_DOUBLE_EQ(head, 2 * 2 * 32 * 8);
}

TEST(CostModel, LogitsAreOneChunk) {
  const GptConfig config = olmoe_1b_7b();
  EXPECT_EQ(logit_bytes(config, 4 * 4096), loss_chunk_tokens(50304, DType::BF16) * 50304 * 2);
  EXPECT_EQ(logit_bytes(tiny(), 10), 10 * 32 * 4);
  EXPECT_EQ(logit_bytes(tiny(), 10, {.tensor = 3}), 10 * 11 * 4) << "with padding";
}

TEST(CostModel, WorkspaceIsThatOfTheWidestLayer) {
  GptConfig config = tiny();
  const int64_t library = workspace_bytes(config, 0);
  // Of experts the gradients of the output and the activation, or those of the input and rows of x.
  const int64_t moe = 4 * 2 * (8 + 2 * 12 + 12), dense = 4 * (2 * 8 + 3 * 16);
  EXPECT_GT(moe, dense);
  EXPECT_EQ(workspace_bytes(config, 10) - library, 10 * moe);
  config.moe.ffn = 5;
  config.model.ffn = 1;
  EXPECT_EQ(workspace_bytes(config, 10) - library, 10 * 4 * 2 * (8 + 2 * 5 + 8));
  config.moe.ffn = 12;
  config.model.ffn = 16;
  config.moe.layer_freq = {0, 0};
  EXPECT_EQ(workspace_bytes(config, 10) - library, 10 * dense);
  EXPECT_EQ(workspace_bytes(config, 10, {.tensor = 2}) - library, 10 * 4 * (2 * 8 + 3 * 16 / 2));
}

TEST(DeriveDefaults, FillsWhatWasLeftOut) {
  GptConfig config;
  config.model.hidden = 128;
  config.model.heads = 4;
  config.moe.experts = 2;
  EXPECT_EQ(derive_defaults(config.model, config.moe),
            (std::vector<std::string>{"model.kv_heads", "model.head_dim", "model.ffn", "moe.ffn"}));
  EXPECT_EQ(config.model.kv_heads, 4);
  EXPECT_EQ(config.model.head_dim, 32);
  EXPECT_EQ(config.model.ffn, 320);
  EXPECT_EQ(config.moe.ffn, 320);
  EXPECT_TRUE(derive_defaults(config.model, config.moe).empty());
}

}  // namespace
}  // namespace ferry
