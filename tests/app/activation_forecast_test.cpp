#include "app/activation_forecast.h"

#include <gtest/gtest.h>

#include "app/model_layout.h"
#include "tests/app/small_run.h"
#include "tests/app/training_rank.h"

namespace ferry {
namespace {

using Overrides = std::vector<std::string>;

Overrides joined(Overrides first, const Overrides& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// What the tapes of a rank had on the device in the second step, when the plan of offload is made.
struct Measured {
  int pp = 0;
  int64_t peak = 0;
  std::map<std::string, int64_t> peak_of_module;
};

std::vector<Measured> measure(const RunConfig& config, int ranks) {
  std::vector<Measured> result(static_cast<size_t>(ranks));
  testing::run_ranks(ranks, [&](Group& world, Control&) {
    testing::TrainingRank rank(config, world);
    rank.step();
    rank.step();
    Measured& own = result[static_cast<size_t>(world.rank())];
    const MemoryLedger& saved = rank.model().activation_memory().saved_bytes();
    own.pp = rank.groups().coordinates().pp;
    own.peak = saved.peak();
    for (const MemoryLedger::Usage& usage : saved.table())
      if (usage.peak > 0) own.peak_of_module[usage.name] = usage.peak;
  });
  return result;
}

class ActivationForecastTest : public ::testing::Test {
 protected:
  // Sizes at which what does not grow with the tokens (offsets of experts' rows) is small.
  RunConfig run_of(const Overrides& overrides, int ranks) {
    return testing::parallel_run(
        dir_,
        joined({"model.precision=fp32", "model.seq=64", "moe.top_k=2", "batch.global=16",
                "moe.router.balance=aux_loss", "activation_offload.min_tensor_elements=64"},
               overrides),
        ranks);
  }

  // Within `tolerance` of what runs, in total and of every module. With offload only in total: what
  // comes back early is another module's peak at another time.
  void expect_forecast(const Overrides& overrides, int ranks, double tolerance) {
    SCOPED_TRACE(::testing::PrintToString(overrides));
    RunConfig config = run_of(overrides, ranks);
    // Each copy is waited for at once, so that what is on the device does not depend on time.
    if (config.activation_offload.enabled) config.activation_offload.max_inflight = 0;
    for (const Measured& own : measure(config, ranks)) {
      SCOPED_TRACE(concat("pipeline rank ", own.pp));
      const ActivationForecast forecast = forecast_activations(config, ranks, own.pp);
      EXPECT_NEAR(static_cast<double>(forecast.bytes()), static_cast<double>(own.peak),
                  tolerance * static_cast<double>(own.peak));
      if (config.activation_offload.enabled) continue;
      for (const auto& [module, bytes] : own.peak_of_module) {
        const auto found = forecast.peak_of_module.find(module);
        ASSERT_NE(found, forecast.peak_of_module.end()) << module;
        EXPECT_NEAR(static_cast<double>(found->second), static_cast<double>(bytes),
                    tolerance * static_cast<double>(bytes))
            << module;
      }
      EXPECT_EQ(forecast.peak_of_module.size(), own.peak_of_module.size());
    }
  }

  testing::TempDir dir_;
};

const char kShared[] = "moe.shared_ffn=12";

// On one rank every size is known.
TEST_F(ActivationForecastTest, OfModelsIsWhatTheTapeCounts) {
  expect_forecast({}, 1, 0.01);
  expect_forecast({"model.qk_norm=none", "model.precision=bf16", kShared}, 1, 0.01);
  expect_forecast({"model.qk_norm=full", kShared, "moe.shared_gate=true"}, 1, 0.01);
  expect_forecast({"moe.fused_experts=true", "model.precision=fp64"}, 1, 0.01);
  expect_forecast({"moe.layer_freq=[0,0,0,0]"}, 1, 0.01);
}

TEST_F(ActivationForecastTest, WithRecomputeIsWhatTheTapeCounts) {
  const Overrides selective{"recompute.granularity=selective", kShared, "moe.shared_gate=true"};
  for (const char* modules :
       {"recompute.modules=[layernorm]", "recompute.modules=[moe_act]",
        "recompute.modules=[layernorm,moe_act]", "recompute.modules=[core_attn]",
        "recompute.modules=[mlp]", "recompute.modules=[moe]", "recompute.modules=[shared_experts]",
        "recompute.modules=[layernorm,core_attn,moe]"})
    expect_forecast(joined(selective, {modules}), 1, 0.01);
  const Overrides full{"recompute.granularity=full"};
  for (const char* method : {"recompute.method=uniform", "recompute.method=block"})
    for (const char* layers : {"recompute.num_layers=1", "recompute.num_layers=3"})
      expect_forecast(joined(full, {method, layers}), 1, 0.01);
}

TEST_F(ActivationForecastTest, WithOffloadIsWhatTheTapeCounts) {
  const Overrides offload{"activation_offload.enabled=true"};
  for (const char* modules :
       {"activation_offload.modules=[core_attn]", "activation_offload.modules=[attn_norm]",
        "activation_offload.modules=[core_attn,attn_proj]",
        "activation_offload.modules=[expert_fc1,moe_act]",
        "activation_offload.modules=[attn_norm,qkv_linear,core_attn,attn_proj,mlp_norm,expert_fc1,"
        "moe_act]"})
    for (const char* fraction :
         {"activation_offload.fraction=1.0", "activation_offload.fraction=0.5"})
      expect_forecast(joined(offload, {modules, fraction}), 1, 0.01);
  expect_forecast(
      joined(offload, {"activation_offload.modules=[attn_norm,core_attn,mlp_norm]",
                       "recompute.granularity=selective", "recompute.modules=[layernorm,moe_act]"}),
      1, 0.01);
  expect_forecast(joined(offload, {"activation_offload.modules=[core_attn,expert_fc1]",
                                   "activation_offload.min_tensor_elements=5000"}),
                  1, 0.01);
}

// Balanced routing is only true on average, so with expert parallelism the tolerance is wide.
TEST_F(ActivationForecastTest, OfLayoutsIsWhatTheTapeCounts) {
  for (const Overrides& policy :
       {Overrides{}, Overrides{"recompute.granularity=selective", "recompute.modules=[layernorm]"},
        Overrides{"activation_offload.enabled=true", "activation_offload.modules=[core_attn]",
                  "activation_offload.fraction=0.75"}})
    for (const Overrides& layout :
         {Overrides{"parallel.pipeline=4"}, Overrides{"parallel.tensor=2", "model.qk_norm=full"},
          Overrides{"parallel.tensor=2", "parallel.sequence=true"},
          Overrides{"parallel.pipeline=2", "parallel.virtual_stages=2"},
          Overrides{"parallel.pipeline=2", "parallel.layout='Et|t||ttL'"}})
      expect_forecast(joined(layout, policy), 4, 0.01);
  expect_forecast({"parallel.tensor=2", "recompute.granularity=full", "recompute.method=block",
                   "recompute.num_layers=2", "recompute.distribute_saved_activations=true"},
                  4, 0.01);
  const Overrides balanced{"debug.force_routing=balanced"};
  expect_forecast(joined(balanced, {"parallel.expert=2"}), 4, 0.05);
  expect_forecast(joined(balanced, {"parallel.expert=2", "parallel.expert_tensor=2",
                                    "moe.dispatcher=allgather"}),
                  4, 0.05);
}

// What copies hold while they are under way is predicted from rates.
TEST_F(ActivationForecastTest, SlowCopiesHoldMemoryAndTime) {
  const RunConfig config = run_of(
      {"activation_offload.enabled=true", "activation_offload.modules=[core_attn,expert_fc1]"}, 1);
  const ActivationForecast fast = forecast_activations(config, 1, 0, {1e15, 1e9});
  const ActivationForecast slow = forecast_activations(config, 1, 0, {1e9, 1e15});
  EXPECT_EQ(fast.by_module, slow.by_module);
  ASSERT_TRUE(fast.offload && slow.offload);
  EXPECT_EQ(fast.copies, 0);
  EXPECT_GT(slow.copies, 0);
  EXPECT_LT(fast.offload->forecast.cost(), 0.001);
  EXPECT_GT(slow.offload->forecast.cost(), 1);
  EXPECT_EQ(fast.offload->forecast.d2h_bytes(), slow.offload->forecast.d2h_bytes());
  // Four layers, three of them with experts; each pass comes back at once and keeps the last of
  // each module, and so does the plan.
  EXPECT_EQ(fast.offload->num_candidates, 4 + 3);
  const int64_t tokens = 2 * 64, passes = 8;
  const int64_t qkv = tokens * (4 + 2 * 2) * 6 * 4, rows = tokens * 2 * 18 * 4;
  EXPECT_EQ(fast.offload->forecast.traffic.at("core_attn").d2h_bytes,
            passes * 3 * (qkv + tokens * 4 * 4));
  EXPECT_EQ(fast.offload->forecast.traffic.at("expert_fc1").d2h_bytes, passes * 2 * rows);
}

TEST_F(ActivationForecastTest, ABudgetChoosesGroups) {
  RunConfig config =
      run_of({"activation_offload.enabled=true", "activation_offload.modules=[core_attn]"}, 1);
  config.activation_offload.auto_budget = 0.02;
  const auto groups = [&](const MachineRates& rates) {
    return forecast_activations(config, 1, 0, rates).offload->num_groups;
  };
  EXPECT_EQ(groups({1e15, 1e9}), 4);
  EXPECT_EQ(groups({1, 1e15}), 0);
  config.activation_offload.modules.clear();
  EXPECT_EQ(forecast_activations(config, 1, 0, {1e15, 1e9}).offload->num_candidates, 4 * 5 + 3 * 2)
      << "without names every module is a candidate";
  config.moe.fused_experts = true;
  EXPECT_EQ(forecast_activations(config, 1, 0, {1e15, 1e9}).offload->num_candidates, 4 * 5 + 3);
}

TEST_F(ActivationForecastTest, LayerOffloadKeepsTheOtherLayers) {
  RunConfig config = run_of({}, 1);
  const ActivationForecast all = forecast_activations(config, 1, 0);
  config.layer_offload.layers = 2;
  const ActivationForecast offloaded = forecast_activations(config, 1, 0);
  EXPECT_EQ(offloaded.peak_of_module.at("attn_norm"), all.peak_of_module.at("attn_norm") / 2);
  EXPECT_LT(offloaded.bytes(), all.bytes() * 6 / 10);
  ASSERT_TRUE(offloaded.offload);
  EXPECT_EQ(offloaded.offload->num_groups, 2);
  EXPECT_GT(offloaded.offload->forecast.traffic.at("layer").d2h_bytes, 0);
  config.layer_offload.activations = false;
  EXPECT_EQ(forecast_activations(config, 1, 0).by_module, all.by_module);
}

TEST_F(ActivationForecastTest, AStashTakesTheRowsInUse) {
  RunConfig config = run_of({"parallel.expert=2"}, 2);
  const ActivationForecast dropless = forecast_activations(config, 2, 0);
  config.moe.rank_capacity_factor = 2.0;
  const ActivationForecast padded = forecast_activations(config, 2, 0);
  EXPECT_EQ(padded.by_module.at("expert_fc1"), 2 * dropless.by_module.at("expert_fc1"));
  config.paged_stash.enabled = true;
  config.paged_stash.device_factor = 1.5;
  const ActivationForecast stashed = forecast_activations(config, 2, 0);
  EXPECT_LT(stashed.by_module.at("expert_fc1"), padded.by_module.at("expert_fc1"));
  // Two of three layers: the last one stays, because its backward is next.
  const int64_t of_experts = dropless.by_module.at("expert_fc1") +
                             dropless.by_module.at("expert_fc2") + dropless.by_module.at("moe_act");
  EXPECT_EQ(stashed.stash, of_experts * 2 / 3 * 3 / 2);
  EXPECT_EQ(padded.stash, 0);
}

}  // namespace
}  // namespace ferry
