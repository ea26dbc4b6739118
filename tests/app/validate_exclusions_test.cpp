#include "app/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/app/violations.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;
using testing::Overrides;
using testing::quickstart;
using testing::violations;

// Overrides that make each row of the table of exclusions apply.
const std::map<std::string, Overrides>& exclusion_cases() {
  static const std::string on = "activation_offload.enabled=true";
  static const std::string selective = "recompute.granularity=selective";
  static const Overrides full = {"recompute.granularity=full", "recompute.method=uniform",
                                 "recompute.num_layers=1"};
  static const auto modules = [](const std::string& names) {
    return "activation_offload.modules=[" + names + "]";
  };
  static const auto full_and = [](const std::string& more) {
    Overrides o = full;
    o.push_back(more);
    return o;
  };
  static const std::map<std::string, Overrides> cases = {
      {"activation offload with layer offload",
       {on, modules("attn_norm"), "layer_offload.layers=1"}},
      {"activation offload of nothing", {on}},
      {"offload of attn_proj without core_attn", {on, modules("attn_proj")}},
      {"offload inside a recomputed MoE layer",
       {on, modules("moe_act"), selective, "recompute.modules=[moe]"}},
      {"offload of rows of experts that are made again",
       {on, modules("expert_fc1"), selective, "recompute.modules=[moe_permute]"}},
      {"offload of fused_group_mlp without fused experts", {on, modules("fused_group_mlp")}},
      {"offload of fused_group_mlp together with its parts",
       {on, modules("fused_group_mlp,moe_act")}},
      {"offload of parts of fused experts", {on, modules("expert_fc1"), "moe.fused_experts=true"}},
      {"activation offload with full recompute",
       {on, modules("attn_norm"), full[0], full[1], full[2]}},
      {"graphs of modules with offload beside the experts",
       {on, modules("attn_norm"), "cuda_graph.impl=local", "cuda_graph.modules=[attn]"}},
      {"graphs of whole layers with activation offload",
       {on, modules("moe_act"), "cuda_graph.impl=local"}},
      {"a captured MoE layer with activation offload",
       {on, modules("moe_act"), "cuda_graph.impl=local", "cuda_graph.modules=[moe]"}},
      {"graphs without a warm-up with activation offload",
       {on, modules("moe_act"), "cuda_graph.impl=local", "cuda_graph.modules=[attn]",
        "cuda_graph.warmup_steps=0"}},
      {"a graph of the iteration with unlimited copies under way",
       {on, modules("moe_act"), "cuda_graph.impl=full_iteration"}},
      {"activation offload of what the paged stash holds",
       {on, modules("moe_act"), "paged_stash.enabled=true", "moe.rank_capacity_factor=1.5"}},
      {"paged stash with layer offload",
       {"paged_stash.enabled=true", "moe.rank_capacity_factor=1.5", "layer_offload.layers=1"}},
      {"paged stash without a bound on rows", {"paged_stash.enabled=true"}},
      {"a paged stash without pages",
       {"paged_stash.enabled=true", "moe.rank_capacity_factor=1.5", "paged_stash.device_factor=0"}},
      {"layer offload of every layer", {"layer_offload.layers=4"}},
      {"layer offload with a pipeline", {"layer_offload.layers=1", "parallel.pipeline=2"}},
      {"layer offload with recompute", {"layer_offload.layers=1", selective}},
      {"layer offload with graphs of modules", {"layer_offload.layers=1", "cuda_graph.impl=local"}},
      {"layer offload of weights that are their own masters",
       {"layer_offload.layers=1", "layer_offload.weights=true", "model.precision=fp32"}},
      {"layer offload of nothing", {"layer_offload.layers=1", "layer_offload.activations=false"}},
      {"full recompute without a plan", {"recompute.granularity=full"}},
      {"a plan of layers without full recompute", {selective, "recompute.method=block"}},
      {"selective recompute of nothing", {selective, "recompute.modules=[]"}},
      {"modules to compute again without selective recompute", {"recompute.modules=[moe_act]"}},
      {"recompute of mla_up_proj without latent attention",
       {selective, "recompute.modules=[mla_up_proj]"}},
      {"recompute of shared experts that overlap",
       {selective, "recompute.modules=[shared_experts]", "moe.shared_ffn=64",
        "moe.shared_overlap=true"}},
      {"recompute of MoE layers whose router is captured",
       {selective, "recompute.modules=[moe]", "cuda_graph.impl=local",
        "cuda_graph.modules=[moe_router]"}},
      {"full recompute with graphs of modules", full_and("cuda_graph.impl=local")},
      {"shared saved activations alone", full_and("recompute.distribute_saved_activations=true")},
      {"shared saved activations with sequence parallelism",
       {full[0], full[1], full[2], "recompute.distribute_saved_activations=true",
        "parallel.tensor=2", "parallel.sequence=true"}},
      {"a delay of offload until graphs are launched, without them or without offload",
       {"activation_offload.delay_until_graph=true", "cuda_graph.impl=local"}},
      {"graphs of moe and of parts of it",
       {"cuda_graph.impl=local", "cuda_graph.modules=[moe,moe_router]"}},
      {"a graph of moe_preprocess without moe_router",
       {"cuda_graph.impl=local", "cuda_graph.modules=[attn,moe_preprocess]"}},
      {"CUDA graphs without a warm-up",
       {"cuda_graph.impl=full_iteration", "cuda_graph.warmup_steps=0"}},
      {"modules of a graph of the iteration",
       {"cuda_graph.impl=full_iteration", "cuda_graph.modules=[attn]"}},
      {"CUDA graphs on the CPU", {"cuda_graph.impl=local", "run.backend=cpu"}},
  };
  return cases;
}

TEST(Validate, EveryExclusionIsRefusedWithItsReason) {
  std::set<std::string> names;
  for (const Exclusion& row : exclusions()) {
    EXPECT_TRUE(names.insert(row.what).second) << "two rows are called " << row.what;
    const auto found = exclusion_cases().find(row.what);
    ASSERT_NE(found, exclusion_cases().end()) << "no case for " << row.what;
    EXPECT_FALSE(row.applies(quickstart({}))) << row.what;
    std::string texts;
    for (const std::string& text : validate(quickstart(found->second), 2)) texts += text + "\n";
    EXPECT_THAT(texts, HasSubstr("error: " + row.what + "\n")) << row.what;
    EXPECT_THAT(texts, HasSubstr("why : " + row.why + "\n  try : " + row.fix));
    for (const std::string& key : row.keys) EXPECT_THAT(texts, HasSubstr("   " + key)) << row.what;
  }
  EXPECT_EQ(names.size(), exclusion_cases().size());
}

TEST(Validate, LegalCombinationsOfMemoryTechniques) {
  EXPECT_THAT(
      violations({"activation_offload.enabled=true",
                  "activation_offload.modules=[attn_norm,core_attn,attn_proj]",
                  "recompute.granularity=selective", "recompute.modules=[layernorm,moe_act]"}),
      ::testing::IsEmpty());
  EXPECT_THAT(
      violations({"paged_stash.enabled=true", "moe.rank_capacity_factor=1.5",
                  "activation_offload.enabled=true", "activation_offload.modules=[core_attn]"}),
      ::testing::IsEmpty());
  EXPECT_THAT(violations({"recompute.granularity=full", "recompute.method=block",
                          "recompute.num_layers=2", "optimizer.offload.enabled=true"}),
              ::testing::IsEmpty());
}

}  // namespace
}  // namespace ferry
