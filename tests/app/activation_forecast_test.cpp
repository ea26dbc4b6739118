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
  std::map<std::string, int64_t> allocated, most_allocated;  // after and in the step, by name
};

std::vector<Measured> measure(RunConfig config, int ranks) {
  config.run.deterministic = true;  // what leaves does not depend on how fast copies are
  std::vector<Measured> result(static_cast<size_t>(ranks));
  testing::run_ranks(ranks, [&](Group& world, Control&) {
    testing::TrainingRank rank(config, world);
    rank.step();
    static_cast<void>(rank.model().activation_memory().traffic());  // waits for all copies
    rank.device().memory().reset_peak();
    rank.step();
    Measured& own = result[static_cast<size_t>(world.rank())];
    const MemoryLedger& saved = rank.model().activation_memory().saved_bytes();
    own.pp = rank.groups().coordinates().pp;
    own.peak = saved.peak();
    for (const MemoryLedger::Usage& usage : saved.table())
      if (usage.peak > 0) own.peak_of_module[usage.name] = usage.peak;
    for (const MemoryLedger::Usage& usage : rank.device().memory().table()) {
      own.allocated[usage.name] = usage.current;
      own.most_allocated[usage.name] = usage.peak;
    }
  });
  return result;
}

int64_t bytes_of(const std::map<std::string, int64_t>& names, const std::string& name) {
  const auto found = names.find(name);
  return found == names.end() ? 0 : found->second;
}

void expect_near(int64_t forecast, int64_t measured, double tolerance, const std::string& what) {
  EXPECT_NEAR(static_cast<double>(forecast), static_cast<double>(measured),
              tolerance * static_cast<double>(measured))
      << what;
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

  // Within `tolerance` of what runs, in total and of every module.
  void expect_forecast(const Overrides& overrides, int ranks, double tolerance) {
    SCOPED_TRACE(::testing::PrintToString(overrides));
    RunConfig config = run_of(overrides, ranks);
    // Each copy is waited for at once, so that what is on the device does not depend on time.
    if (config.activation_offload.enabled) config.activation_offload.max_inflight = 0;
    for (const Measured& own : measure(config, ranks)) {
      SCOPED_TRACE(concat("pipeline rank ", own.pp));
      const ActivationForecast forecast = forecast_activations(config, ranks, own.pp);
      expect_near(forecast.bytes(), own.peak, tolerance, "in total");
      for (const auto& [module, bytes] : own.peak_of_module)
        expect_near(bytes_of(forecast.peak_of_module, module), bytes, tolerance, module);
      EXPECT_EQ(forecast.peak_of_module.size(), own.peak_of_module.size());
      expect_near(forecast.stash, bytes_of(own.allocated, "paged stash"), tolerance, "the pools");
      if (config.layer_offload.double_buffering)
        expect_near(forecast.copies, bytes_of(own.allocated, "layer buffers"), tolerance,
                    "the buffers");
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

const char kAllModules[] =
    "activation_offload.modules=[attn_norm,qkv_linear,core_attn,attn_proj,mlp_norm,expert_fc1,"
    "moe_act]";

TEST_F(ActivationForecastTest, WithOffloadIsWhatTheTapeCounts) {
  const Overrides offload{"activation_offload.enabled=true"};
  const Overrides rebuilt{"recompute.granularity=selective",
                          "recompute.modules=[layernorm,moe_act]"};
  const Overrides checkpointed{"recompute.granularity=selective",
                               "recompute.modules=[core_attn,shared_experts,mlp]", kShared};
  for (const char* modules :
       {"activation_offload.modules=[core_attn]", "activation_offload.modules=[attn_norm]",
        "activation_offload.modules=[core_attn,attn_proj]",
        "activation_offload.modules=[expert_fc1,moe_act]",
        "activation_offload.modules=[attn_norm,core_attn,mlp_norm]", kAllModules})
    for (const char* fraction :
         {"activation_offload.fraction=1.0", "activation_offload.fraction=0.5",
          "activation_offload.fraction=0.25"})
      for (const Overrides& recompute : {Overrides{}, rebuilt, checkpointed})
        expect_forecast(joined(joined(offload, {modules, fraction}), recompute), 1, 0.02);
  expect_forecast(joined(offload, {"moe.fused_experts=true",
                                   "activation_offload.modules=[core_attn,fused_group_mlp]"}),
                  1, 0.02);
  expect_forecast(joined(offload, {"activation_offload.modules=[core_attn,expert_fc1]",
                                   "activation_offload.min_tensor_elements=5000"}),
                  1, 0.02);
}

// Of one micro-batch: what another one needs depends on which copies of the first one are done.
TEST_F(ActivationForecastTest, TheHostHoldsWhatIsAway) {
  for (const Overrides& overrides :
       {Overrides{"activation_offload.enabled=true", "batch.global=2", kAllModules},
        Overrides{"layer_offload.layers=3", "batch.global=2"}}) {
    const RunConfig config = run_of(overrides, 1);
    const int64_t host = forecast_activations(config, 1, 0).host;
    EXPECT_GT(host, 0);
    const Measured own = measure(config, 1)[0];
    expect_near(host, bytes_of(own.most_allocated, "offloaded activations"), 0.05, "on the host");
  }
}

TEST_F(ActivationForecastTest, WithOffloadInPipelinesIsWhatTheTapeCounts) {
  const Overrides offload{"activation_offload.enabled=true"};
  for (const Overrides& layout :
       {Overrides{"parallel.pipeline=4"}, Overrides{"parallel.pipeline=2"},
        Overrides{"parallel.pipeline=2", "parallel.virtual_stages=2"},
        Overrides{"parallel.pipeline=2", "parallel.layout='Et|t||ttL'"}})
    for (const Overrides& policy :
         {Overrides{kAllModules}, Overrides{kAllModules, "activation_offload.fraction=0.5"},
          Overrides{kAllModules, "activation_offload.delta_bytes_across_pipeline=30000"},
          Overrides{"activation_offload.modules=[core_attn,expert_fc1]",
                    "recompute.granularity=selective", "recompute.modules=[layernorm,moe_act]"}})
      expect_forecast(joined(joined(offload, layout), policy), 4, 0.02);
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

TEST_F(ActivationForecastTest, WithLayerOffloadIsWhatTheTapeCounts) {
  for (const char* layers :
       {"layer_offload.layers=1", "layer_offload.layers=2", "layer_offload.layers=3"})
    expect_forecast({layers, kShared}, 1, 0.02);
  expect_forecast({"layer_offload.layers=3", "layer_offload.double_buffering=true"}, 1, 0.05);
  expect_forecast({"layer_offload.layers=3", "layer_offload.weights=true", "model.precision=bf16"},
                  1, 0.02);
  expect_forecast({"layer_offload.layers=2", "parallel.tensor=2", "parallel.sequence=true"}, 2,
                  0.02);
}

TEST_F(ActivationForecastTest, WithThePagedStashIsWhatTheTapeAndThePoolsHave) {
  const Overrides stash{"paged_stash.enabled=true", "moe.rank_capacity_factor=1.5",
                        "debug.force_routing=balanced", "paged_stash.page_tokens=16",
                        "activation_offload.min_tensor_elements=1"};
  expect_forecast(stash, 1, 0.05);
  for (const Overrides& layout :
       {Overrides{"parallel.expert=2"}, Overrides{"parallel.expert=2", "parallel.pipeline=2"},
        Overrides{"parallel.expert=2", "parallel.pipeline=2", "parallel.virtual_stages=2"}})
    for (const Overrides& more :
         {Overrides{}, Overrides{"paged_stash.device_factor=-1.0"},
          Overrides{"recompute.granularity=selective", "recompute.modules=[moe_act,layernorm]"},
          Overrides{"activation_offload.enabled=true",
                    "activation_offload.modules=[core_attn,mlp_norm]"}})
      expect_forecast(joined(joined(stash, layout), more), 4, 0.05);
}

// On one rank every size is known; of several ranks, those that share experts copy.
TEST_F(ActivationForecastTest, OfExpertsThatReadTokensInPlaceIsWhatTheTapeCounts) {
  const Overrides offload{"activation_offload.enabled=true"};
  const Overrides selective{"recompute.granularity=selective"};
  const Overrides stash{"paged_stash.enabled=true", "moe.rank_capacity_factor=1.5",
                        "paged_stash.page_tokens=16"};
  for (const Overrides& policy : {
           Overrides{},
           Overrides{kShared, "moe.shared_gate=true", "model.precision=bf16"},
           Overrides{"moe.fused_experts=true"},
           Overrides{"moe.rank_capacity_factor=1.5"},
           joined(selective, {"recompute.modules=[layernorm,moe_act]"}),
           joined(selective, {"recompute.modules=[layernorm,moe_act]", "moe.fused_experts=true"}),
           joined(selective, {"recompute.modules=[moe_permute]"}),
           joined(selective, {"recompute.modules=[moe,layernorm]", kShared}),
           Overrides{"recompute.granularity=full", "recompute.method=uniform",
                     "recompute.num_layers=1"},
           Overrides{"layer_offload.layers=2"},
           stash,
           joined(stash, {"moe.fused_experts=true"}),
           joined(joined(stash, selective), {"recompute.modules=[layernorm,moe_act]"}),
           joined(offload, {"activation_offload.modules=[expert_fc1,moe_act]"}),
           joined(offload, {kAllModules, "activation_offload.fraction=0.5"}),
           joined(joined(offload, selective),
                  {kAllModules, "recompute.modules=[layernorm,moe_act]"}),
           joined(offload, {"moe.fused_experts=true",
                            "activation_offload.modules=[core_attn,fused_group_mlp]"}),
       })
    expect_forecast(joined({"moe.gather=true", "debug.force_routing=balanced"}, policy), 1, 0.02);
  for (const Overrides& layout :
       {Overrides{"parallel.tensor=2"}, Overrides{"parallel.tensor=2", "parallel.sequence=true"}})
    expect_forecast(joined({"moe.gather=true"}, layout), 2, 0.01);
  for (const char* dispatcher : {"moe.dispatcher=alltoall", "moe.dispatcher=allgather"})
    for (const char* axis : {"parallel.expert=2", "parallel.expert_tensor=2"})
      expect_forecast({"moe.gather=true", "debug.force_routing=balanced", dispatcher, axis}, 2,
                      0.05);
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
  EXPECT_EQ(groups({1e15, 1e9}), 3) << "the last layer's would come back at once";
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
  EXPECT_LT(offloaded.bytes(), all.bytes() * 8 / 10);
  ASSERT_TRUE(offloaded.offload);
  EXPECT_EQ(offloaded.offload->num_groups, 2);
  const int64_t passes = 8;
  EXPECT_EQ(offloaded.offload->forecast.traffic.at("layer").d2h_bytes, passes * offloaded.host)
      << "a pass moves all that is on the host";
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
  // Two of three layers: the last one stays, because its backward is next. Vectors have no pages.
  const int64_t rows = 2 * 64 * 2, row = (18 + 2 * 16 + 16) * 4;
  EXPECT_EQ(stashed.stash, 2 * rows * 3 / 2 * row);
  EXPECT_EQ(stashed.host, 0);
  // Beside the tape: what is packed or unpacked, of one layer with its padding.
  EXPECT_GT(stashed.copies, 0);
  EXPECT_LE(stashed.copies, 2 * rows * row);
  config.paged_stash.host_factor = 1.0;
  EXPECT_EQ(forecast_activations(config, 2, 0).host, 2 * rows * row);
  EXPECT_EQ(padded.stash, 0);
}

}  // namespace
}  // namespace ferry
