#include "app/megatron_estimate.h"

#include <gtest/gtest.h>

#include "app/model/cost_model.h"
#include "tests/app/small_run.h"

namespace ferry {
namespace {

constexpr double kGiB = 1 << 30, kMiB = 1 << 20;

// A dense layer, and a MoE layer with a shared expert.
MegatronModel two_layers() {
  MegatronModel m;
  m.hidden = 8;
  m.heads = m.kv_heads = 2;
  m.head_dim = 4;
  m.ffn = m.moe_ffn = 16;
  m.shared_ffn = 8;
  m.experts = 4;
  m.top_k = 2;
  m.gated = false;
  m.vocab = 32;
  m.is_moe = {false, true};
  return m;
}

TEST(MegatronEstimate, PublishedExampleOfALayer) {
  const auto bytes = [](LayerRecompute recompute) {
    return dense_layer_bytes(4096, 2, 4096, 32, 2, recompute);
  };
  EXPECT_NEAR(bytes(LayerRecompute::None) / kGiB, 3.03, 0.005);
  EXPECT_NEAR(bytes(LayerRecompute::Selective) / kGiB, 0.5, 0.05);
  EXPECT_EQ(bytes(LayerRecompute::Selective) / kMiB, 544);
  EXPECT_EQ(bytes(LayerRecompute::Full) / kMiB, 32);
}

TEST(MegatronEstimate, ClosedFormOfWeightsAndOptimizer) {
  MegatronLayout l;
  l.world = 64;
  l.tensor = l.pipeline = l.expert = 2;
  l.expert_tensor = 4;
  const double sharded = ((256 + 256 + 256 + 128) / 2.0 + 256) / 2;
  const double replicated = (16 + 16 + 32 + 8) / 2.0;
  const double routed = 1024 / 2.0 / 8;
  EXPECT_DOUBLE_EQ(megatron_estimate(two_layers(), l).weights_and_optimizer,
                   (sharded + replicated) * (6 + 12 / 16.0) + routed * (6 + 12 / 4.0));
  l.distributed_optimizer = false;
  EXPECT_DOUBLE_EQ(megatron_estimate(two_layers(), l).weights_and_optimizer,
                   (sharded + replicated + routed) * 18);
}

TEST(MegatronEstimate, ClosedFormWithLatentExperts) {
  MegatronModel m = two_layers();
  m.latent = 4;
  MegatronLayout l;
  l.world = 32;
  l.tensor = l.expert = 2;
  l.expert_tensor = 4;
  const double sharded = ((256 + 256) + (256 + 128) + 256) / 2.0;
  const double replicated = 16 + (16 + 64 + 32) + 8;
  const double routed = 512 / 8.0;
  EXPECT_DOUBLE_EQ(megatron_estimate(m, l).weights_and_optimizer,
                   (sharded + replicated) * (6 + 12 / 16.0) + routed * (6 + 12 / 4.0));
}

TEST(MegatronEstimate, ParametersOfTheWholeModel) {
  MegatronModel m = two_layers();
  const double others = (256 + 256) + (256 + 128) + (16 + 16 + 32 + 8) + 256;
  EXPECT_DOUBLE_EQ(megatron_estimate(m, {}).parameters, others + 1024);
  EXPECT_DOUBLE_EQ(megatron_estimate(m, {}).active_parameters, others + 512);
  m.untied = true;
  m.shared_gate = true;
  EXPECT_DOUBLE_EQ(megatron_estimate(m, {}).parameters, others + 1024 + 256 + 8);
  m.gated = true;
  EXPECT_DOUBLE_EQ(megatron_estimate(m, {}).parameters,
                   others + 1024 + 256 + 8 + (256 + 128 + 1024) / 2);
  m.extra_layers = 1;  // a MoE layer
  EXPECT_DOUBLE_EQ(
      megatron_estimate(m, {}).parameters,
      others + 1024 + 256 + 8 + (256 + 128 + 1024) / 2 + (256 + 192 + 16 + 32 + 8 + 1536));
}

TEST(MegatronEstimate, LatentAttention) {
  MegatronModel m = two_layers();
  m.is_moe = {false};
  const double without = megatron_estimate(m, {}).parameters - 256;
  m.mla = true;
  m.kv_rank = 3;
  m.qk_nope = 5;
  m.qk_rope = 2;
  m.v_dim = 6;
  const double others = 3 * (8 + 2 * (5 + 6) + 1) + 8 * 2 + 2 * 6 * 8;
  EXPECT_DOUBLE_EQ(megatron_estimate(m, {}).parameters, without + 8 * 2 * (5 + 2) + others);
  m.q_rank = 7;
  EXPECT_DOUBLE_EQ(megatron_estimate(m, {}).parameters,
                   without + 7 * (8 + 2 * (5 + 2) + 1) + others);
}

TEST(MegatronEstimate, UntiedEmbeddingsOfOneStageAreBothThere) {
  MegatronModel m = two_layers();
  MegatronLayout l;
  l.world = 4;
  l.tensor = 2;
  const double tied = megatron_estimate(m, l).weights_and_optimizer;
  m.untied = true;
  EXPECT_DOUBLE_EQ(megatron_estimate(m, l).weights_and_optimizer - tied, 256 / 2 * (6 + 12 / 2.0));
  l.pipeline = 2;
  MegatronModel again = two_layers();
  EXPECT_DOUBLE_EQ(megatron_estimate(m, l).weights_and_optimizer,
                   megatron_estimate(again, l).weights_and_optimizer);
}

TEST(MegatronEstimate, ShardedActivationsByHand) {
  const MegatronModel m = two_layers();
  MegatronLayout l;
  l.tensor = 2;
  l.seq = 10;
  l.micro_batch = 3;
  l.num_micro = 8;
  l.sequence = l.selective_recompute = true;
  const double sbh = 10 * 3 * 8, sb = 30;
  const double layers = sbh * (18 + 4 * 2) * 2;
  EXPECT_DOUBLE_EQ(megatron_estimate(m, l).activations,
                   (layers + 8 * sb + sbh + 4 * sbh * (1 + 4)) / 2);
  l.pipeline = 4;
  const double of_four = layers + 8 * sb * 4 + sbh * 4;
  EXPECT_DOUBLE_EQ(megatron_estimate(m, l).activations, of_four / 2);
  l.num_micro = 2;
  EXPECT_DOUBLE_EQ(megatron_estimate(m, l).activations, of_four / 2 / 2);
  l.virtual_stages = 3;
  EXPECT_DOUBLE_EQ(megatron_estimate(m, l).activations, of_four * (1 + 3.0 / 12) / 2);
}

TEST(MegatronEstimate, OtherActivationsByHand) {
  const MegatronModel m = two_layers();
  MegatronLayout l;
  l.tensor = 2;
  l.seq = 10;
  l.micro_batch = 3;
  const double sbh = 10 * 3 * 8, sb = 30;
  const double layers = sbh * (10 + 12) * 2;
  const double bytes = (layers + 8 * sb + sbh + 2 * (sb * 32 / 2 + sbh)) * 1.05;
  EXPECT_DOUBLE_EQ(megatron_estimate(m, l).activations, bytes);
  l.sequence = true;
  EXPECT_DOUBLE_EQ(megatron_estimate(m, l).activations, bytes) << "without selective recompute";
  l.sequence = false;
  l.selective_recompute = true;
  EXPECT_DOUBLE_EQ(megatron_estimate(m, l).activations, bytes) << "without sequence parallelism";
}

TEST(MegatronEstimate, MoreRanksHoldLess) {
  const auto estimate = [](int64_t tensor, int64_t expert, int64_t expert_tensor) {
    MegatronLayout l;
    l.world = 64;
    l.tensor = tensor;
    l.expert = expert;
    l.expert_tensor = expert_tensor;
    return megatron_estimate(two_layers(), l).weights_and_optimizer;
  };
  EXPECT_GT(estimate(1, 1, 1), estimate(2, 1, 1));
  EXPECT_GT(estimate(2, 1, 1), estimate(4, 1, 1));
  EXPECT_GT(estimate(1, 1, 1), estimate(1, 2, 1));
  EXPECT_GT(estimate(1, 2, 1), estimate(1, 2, 2));
  EXPECT_GT(estimate(1, 2, 2), estimate(1, 4, 2));
}

// Our count of parameters and Megatron's agree where the model has no norms of queries and keys.
TEST(MegatronEstimate, OfAConfigurationItCountsTheSameParameters) {
  testing::TempDir dir;
  const RunConfig config =
      testing::small_run(dir, {"model.vocab=256", "model.tie_embeddings=false", "moe.shared_ffn=8",
                               "moe.shared_gate=true", "model.kv_heads=1"});
  const MegatronEstimate estimate = megatron_estimate(config, 1);
  const ParameterCount count = count_parameters(config.gpt());
  EXPECT_EQ(static_cast<int64_t>(estimate.parameters), count.total());
  EXPECT_EQ(static_cast<int64_t>(estimate.active_parameters), count.active());
  EXPECT_EQ(estimate.total(), estimate.weights_and_optimizer + estimate.activations);
}

}  // namespace
}  // namespace ferry
