// Whatever keeps, moves or rebuilds activations, a run gives the bits of one without.

#include "app/activation_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/evaluation.h"
#include "tests/app/small_run.h"
#include "tests/app/training_rank.h"

namespace ferry::testing {
namespace {

using ::testing::ElementsAre;
using Overrides = std::vector<std::string>;

Overrides joined(Overrides first, const Overrides& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

struct Trained {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> weights;
  int64_t saved_peak = 0;  // of rank 0 in the last step
  TrafficByModule traffic;

  // Bit for bit.
  void expect_same(const Trained& other, const std::string& what) const {
    EXPECT_EQ(losses, other.losses) << what;
    EXPECT_EQ(norms, other.norms) << what;
    EXPECT_EQ(weights, other.weights) << what;
  }
};

Trained train(const RunConfig& config, int ranks, int steps = 3, bool evaluates = false) {
  Trained result;
  Assembly weights;
  run_ranks(ranks, [&](Group& world, Control&) {
    TrainingRank rank(config, world);
    for (int step = 0; step < steps; ++step) {
      if (evaluates) {
        rank.model().finish_update();
        evaluate(rank.model().model(), open_validation_data(config, ranks), 1,
                 rank.model().evaluation_hooks());
      }
      const StepNumbers numbers = rank.step();
      if (world.rank() != 0) continue;
      result.losses.push_back(numbers.loss);
      result.norms.push_back(numbers.norm);
    }
    rank.stream().synchronize();
    if (world.rank() == 0) {
      result.saved_peak = rank.model().activation_memory().saved_bytes().peak();
      result.traffic = rank.model().activation_memory().traffic();
    }
    weights.add_values(rank);
  });
  result.weights = weights.whole();
  return result;
}

const Overrides kOffload{"activation_offload.enabled=true",
                         "activation_offload.min_tensor_elements=1"};
Overrides offload(const std::string& modules, const Overrides& more = {}) {
  return joined(joined(kOffload, {"activation_offload.modules=[" + modules + "]"}), more);
}
Overrides selective(const std::string& modules) {
  return {"recompute.granularity=selective", "recompute.modules=[" + modules + "]"};
}

const std::string kAll = "attn_norm,qkv_linear,core_attn,attn_proj,mlp_norm,expert_fc1,moe_act";

// Every module alone, what is used together, and everything.
std::vector<Overrides> policies() {
  std::vector<Overrides> all;
  for (const char* module :
       {"attn_norm", "qkv_linear", "core_attn", "core_attn,attn_proj", "mlp_norm", "expert_fc1",
        "moe_act", "expert_fc1,moe_act", "core_attn,attn_proj,expert_fc1,moe_act"})
    all.push_back(offload(module));
  for (const char* fraction : {"0", "0.25", "0.5", "0.75"})
    all.push_back(offload(kAll, {concat("activation_offload.fraction=", fraction)}));
  all.push_back(offload(kAll, {"activation_offload.max_inflight=0"}));
  all.push_back(offload(kAll, {"activation_offload.max_inflight=2"}));
  all.push_back(offload(kAll, {"activation_offload.delta_bytes_across_pipeline=1000"}));
  all.push_back(joined(kOffload, {"activation_offload.auto_budget=0.5"}));
  for (const char* modules :
       {"core_attn", "mlp", "moe", "shared_experts", "layernorm", "moe_act", "moe_permute",
        "layernorm,moe_act,moe_permute", "core_attn,mlp,moe,shared_experts,layernorm,moe_act"})
    all.push_back(selective(modules));
  all.push_back(joined(offload(kAll), selective("layernorm,moe_act")));
  all.push_back(joined(offload("attn_norm,qkv_linear,core_attn,attn_proj,mlp_norm,moe_act"),
                       selective("layernorm,moe_act,moe_permute")));
  all.push_back(joined(offload(kAll), selective("layernorm,moe_act,core_attn,shared_experts,mlp")));
  all.push_back(joined(offload("attn_norm,qkv_linear,core_attn,attn_proj,mlp_norm"),
                       selective("moe,layernorm")));
  all.push_back(
      {"recompute.granularity=full", "recompute.method=uniform", "recompute.num_layers=3"});
  all.push_back({"recompute.granularity=full", "recompute.method=block", "recompute.num_layers=2"});
  all.push_back(joined(offload("attn_norm,core_attn,fused_group_mlp"), {"moe.fused_experts=true"}));
  all.push_back(joined(joined(offload("core_attn,fused_group_mlp"), selective("moe_act")),
                       {"moe.fused_experts=true"}));
  return all;
}

// With everything that could go wrong: dropout, both router losses, shared experts with a gate,
// norms of queries and keys.
const Overrides kModel{"model.hidden_dropout=0.1", "model.attention_dropout=0.1",
                       "moe.router.z_coeff=0.001", "moe.shared_ffn=16",
                       "moe.shared_gate=true",     "model.qk_norm=full"};

class ActivationMemoryTest : public ::testing::Test {
 protected:
  RunConfig config(const Overrides& overrides, int64_t ranks = 1) {
    return parallel_run(dir_, joined(kModel, overrides), ranks);
  }
  void expect_all_policies_equal(const Overrides& layout, int ranks) {
    const Trained none = train(config(layout, ranks), ranks);
    for (const Overrides& policy : policies()) {
      std::string what;
      for (const std::string& override : policy) what += override + ' ';
      train(config(joined(layout, policy), ranks), ranks).expect_same(none, what);
    }
  }

  TempDir dir_;
};

TEST_F(ActivationMemoryTest, EveryPolicyGivesTheSameBits) { expect_all_policies_equal({}, 1); }

TEST_F(ActivationMemoryTest, EveryPolicyGivesTheSameBitsInBf16) {
  expect_all_policies_equal({"model.precision=bf16"}, 1);
}

TEST_F(ActivationMemoryTest, EveryPolicyGivesTheSameBitsInAPipeline) {
  expect_all_policies_equal({"parallel.pipeline=2", "parallel.virtual_stages=2"}, 2);
}

TEST_F(ActivationMemoryTest, EveryPolicyGivesTheSameBitsOnSharedModules) {
  expect_all_policies_equal({"parallel.tensor=2", "parallel.sequence=true", "parallel.expert=2"},
                            2);
}

const Overrides kGather{"moe.gather=true"};

// Beside experts that read copies of tokens, with every policy that concerns what experts save.
TEST_F(ActivationMemoryTest, ExpertsThatReadTokensInPlaceGiveTheSameBits) {
  const Overrides stash{"paged_stash.enabled=true", "moe.rank_capacity_factor=1.5",
                        "paged_stash.page_tokens=8"};
  const std::vector<Overrides> all{
      {},
      {"moe.fused_experts=true"},
      {"moe.rank_capacity_factor=1.5"},
      selective("layernorm,moe_act"),
      selective("layernorm,moe_act,moe_permute"),
      selective("moe,shared_experts"),
      {"recompute.granularity=full", "recompute.method=uniform", "recompute.num_layers=2"},
      offload("expert_fc1,moe_act"),
      joined(offload(kAll), selective("layernorm,moe_act")),
      joined(offload("fused_group_mlp"), {"moe.fused_experts=true"}),
      joined(kOffload, {"activation_offload.auto_budget=0.5"}),
      {"layer_offload.layers=3"},
      joined(stash, {"paged_stash.device_factor=1.1"}),
      joined(stash, {"paged_stash.device_factor=-1.0", "moe.fused_experts=true"})};
  for (const char* precision : {"model.precision=fp64", "model.precision=bf16"}) {
    const Trained copying = train(config({precision}), 1);
    for (const Overrides& policy : all)
      train(config(joined(joined({precision}, kGather), policy)), 1)
          .expect_same(copying, ::testing::PrintToString(policy));
  }
}

// Tensor parallelism leaves all experts on a rank. Ranks that share them copy as without the key.
TEST_F(ActivationMemoryTest, ExpertsReadTokensInPlaceWhereARankHasAllOfThem) {
  const Overrides rebuilt = selective("layernorm,moe_act");
  const auto saved = [&](const Overrides& layout, const Overrides& policy) {
    const Trained copying = train(config(joined(layout, policy), 2), 2);
    const Trained gathering = train(config(joined(joined(layout, kGather), policy), 2), 2);
    gathering.expect_same(copying, ::testing::PrintToString(layout));
    return std::pair(copying.saved_peak, gathering.saved_peak);
  };
  for (const Overrides& policy : {Overrides{}, rebuilt}) {
    const auto [copies, in_place] = saved({"parallel.tensor=2", "parallel.sequence=true"}, policy);
    EXPECT_LT(in_place, copies);
    for (const char* axis : {"parallel.expert=2", "parallel.expert_tensor=2"})
      for (const char* dispatcher : {"moe.dispatcher=alltoall", "moe.dispatcher=allgather"}) {
        const auto [without, with] = saved({axis, dispatcher}, policy);
        EXPECT_EQ(with, without) << axis << ' ' << dispatcher;
      }
  }
}

TEST_F(ActivationMemoryTest, LayerOffloadGivesTheSameBits) {
  const Overrides cases[] = {
      {"layer_offload.layers=1"},
      {"layer_offload.layers=3"},
      {"layer_offload.layers=2", "layer_offload.double_buffering=true"},
      {"layer_offload.layers=3", "layer_offload.double_buffering=true",
       "layer_offload.retain_pinned_buffers=true"},
      {"layer_offload.layers=2", "layer_offload.weights=true"},
      {"layer_offload.layers=3", "layer_offload.weights=true", "layer_offload.activations=false"},
      {"layer_offload.layers=3", "layer_offload.weights=true",
       "layer_offload.double_buffering=true", "layer_offload.retain_pinned_buffers=true"}};
  for (const Overrides& layout :
       {Overrides{}, Overrides{"parallel.tensor=2", "parallel.sequence=true", "parallel.expert=2"},
        Overrides{"optimizer.overlap_grad_reduce=true", "optimizer.overlap_param_gather=true"},
        Overrides{"optimizer.distributed=false"}}) {
    const int ranks = layout.empty() ? 1 : 2;
    const Overrides bf16 = joined(layout, {"model.precision=bf16", "data.kind=synthetic"});
    const Trained none = train(config(bf16, ranks), ranks);
    for (const Overrides& policy : cases) {
      std::string what;
      for (const std::string& override : policy) what += override + ' ';
      const Trained moved = train(config(joined(bf16, policy), ranks), ranks, 3, true);
      moved.expect_same(none, what);
      const bool activations = moved.traffic.contains("layer");
      const bool weights = moved.traffic.contains("layer_weights");
      EXPECT_EQ(activations, policy.back() != "layer_offload.activations=false") << what;
      EXPECT_EQ(weights, what.find("weights=true") != std::string::npos) << what;
    }
  }
}

TEST_F(ActivationMemoryTest, SharedInputsOfWholeLayersGiveTheSameBits) {
  const Overrides layout{"parallel.tensor=2", "parallel.expert=2"};
  const Overrides full{"recompute.granularity=full", "recompute.method=uniform",
                       "recompute.num_layers=1"};
  const Trained none = train(config(layout, 2), 2);
  const Trained whole = train(config(joined(layout, full), 2), 2);
  const Trained shared = train(
      config(joined(layout, joined(full, {"recompute.distribute_saved_activations=true"})), 2), 2);
  whole.expect_same(none, "full");
  shared.expect_same(none, "distributed");
  EXPECT_LT(whole.saved_peak, none.saved_peak / 2);
  EXPECT_LT(shared.saved_peak, whole.saved_peak);
}

TEST_F(ActivationMemoryTest, AnEvaluationBetweenStepsChangesNothing) {
  const RunConfig plain = config({"data.kind=synthetic"});
  const RunConfig moved = config(joined({"data.kind=synthetic"}, offload(kAll)));
  train(moved, 1, 3, /*evaluates=*/true).expect_same(train(plain, 1), "evaluation first");
}

TEST_F(ActivationMemoryTest, OffloadTakesItsBytesOffTheDevice) {
  const Trained none = train(config({}), 1);
  const Trained moved = train(config(offload(kAll, {"activation_offload.max_inflight=0"})), 1);
  EXPECT_TRUE(none.traffic.empty());
  int64_t bytes = 0;
  for (const auto& [module, traffic] : moved.traffic) {
    EXPECT_GT(traffic.d2h_bytes, 0) << module;
    EXPECT_EQ(traffic.d2h_bytes, traffic.h2d_bytes) << module;
    bytes += traffic.d2h_bytes;
  }
  EXPECT_EQ(moved.traffic.size(), 7u);
  // Each micro-batch moves as much, all of it off the peak but for what is on its way back.
  const int64_t per_micro_batch = bytes / 4;
  EXPECT_GE(none.saved_peak - moved.saved_peak, per_micro_batch * 9 / 10);
  EXPECT_LE(none.saved_peak - moved.saved_peak, per_micro_batch);
}

TEST_F(ActivationMemoryTest, ReportsAnAutomaticChoice) {
  run_ranks(1, [&](Group& world, Control&) {
    TrainingRank rank(config(joined(kOffload, {"activation_offload.auto_budget=1"})), world);
    rank.step();
    EXPECT_EQ(rank.model().activation_memory().auto_report(), "");
    EXPECT_FALSE(rank.model().activation_memory().summary());
    rank.step();
    EXPECT_EQ(rank.model().activation_memory().auto_report(), "");
    ASSERT_TRUE(rank.model().activation_memory().summary());
    rank.step();
    EXPECT_THAT(
        rank.model().activation_memory().auto_report(),
        ::testing::MatchesRegex("activation offload chose [0-9]+ of [0-9]+ groups, copies at "
                                "[0-9.]+ and [0-9.]+ GB/s: predicted \\+[0-9.]+ % and "
                                "[0-9.]+ GiB saved, achieved [-+][0-9.]+ % and [-0-9.]+ GiB"));
  });
}

TEST_F(ActivationMemoryTest, ModulesAndLabels) {
  EXPECT_THAT(
      offloaded_labels(config(offload("core_attn,moe_act"))),
      ElementsAre(std::pair(Label::CoreAttn, "core_attn"), std::pair(Label::MoeAct, "moe_act")));
  // What is rebuilt from before the norm of queries and keys leaves that to move.
  EXPECT_THAT(
      offloaded_labels(config(joined(offload("core_attn"), selective("layernorm")))),
      ElementsAre(std::pair(Label::QkNorm, "core_attn"), std::pair(Label::CoreAttn, "core_attn")));
  EXPECT_THAT(offloaded_modules(config(joined(kOffload, {"activation_offload.auto_budget=0.1"}))),
              ElementsAre("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm",
                          "expert_fc1", "moe_act"));
  EXPECT_THAT(offloaded_modules(config(joined(
                  kOffload, {"activation_offload.auto_budget=0.1", "moe.fused_experts=true"}))),
              ::testing::Contains("fused_group_mlp"));
  EXPECT_THAT(offloaded_modules(config(joined(
                  joined(kOffload, {"activation_offload.auto_budget=0.1"}), selective("moe")))),
              ::testing::Not(::testing::Contains("expert_fc1")));
  EXPECT_THAT(moved_modules(config({})), ElementsAre());
}

}  // namespace
}  // namespace ferry::testing
