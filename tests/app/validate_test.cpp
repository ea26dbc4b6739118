#include "app/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "app/config_file.h"
#include "app/nearest.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

using Overrides = std::vector<std::string>;

RunConfig quickstart(const Overrides& overrides) {
  return load_config(std::string(FERRY_SOURCE_DIR) + "/configs/quickstart.toml", overrides);
}

// The violations without those of features that this version lacks.
std::vector<ConfigError> violations(const Overrides& overrides, int64_t ranks = 1) {
  std::vector<ConfigError> errors;
  for (ConfigError& error : find_violations(quickstart(overrides), ranks)) {
    if (error.what.find("is not in this version") == std::string::npos) errors.push_back(error);
  }
  return errors;
}

struct Case {
  Overrides overrides;
  std::string what;
  std::string why;
  std::string fix;
  int64_t ranks = 1;
};

void expect_each(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    std::string found;
    bool is_found = false;
    for (const ConfigError& error : violations(c.overrides, c.ranks)) {
      found += error.text() + "\n";
      is_found = is_found || (error.what == c.what && error.why.find(c.why) != std::string::npos &&
                              error.fix.find(c.fix) != std::string::npos);
    }
    EXPECT_TRUE(is_found) << "wanted " << c.what << "\n  why : " << c.why << "\n  try : " << c.fix
                          << "\nfound " << (found.empty() ? "nothing" : found);
  }
}

TEST(Validate, TheShippedConfigurationsAreLegal) {
  for (const char* name :
       {"quickstart", "olmoe_1b_7b", "qwen3_30b_a3b", "mixtral_8x7b", "bench/olmoe_8l"}) {
    const std::string path = std::string(FERRY_SOURCE_DIR) + "/configs/" + name + ".toml";
    EXPECT_THAT(validate(load_config(path, {}), 1), ::testing::IsEmpty()) << name;
  }
}

TEST(Validate, TheQuickStartRunsOnEveryPowerOfTwoUpToEight) {
  for (const int64_t ranks : {1, 2, 4, 8}) EXPECT_THAT(violations({}, ranks), ::testing::IsEmpty());
  for (const char* layout :
       {"parallel.expert=8", "parallel.expert=4", "parallel.pipeline=4", "parallel.pipeline=2"}) {
    EXPECT_THAT(violations({layout}, 8), ::testing::IsEmpty()) << layout;
  }
  EXPECT_THAT(violations({"parallel.tensor=2", "parallel.sequence=true", "parallel.expert_tensor=2",
                          "parallel.expert=2", "parallel.pipeline=2"},
                         8),
              ::testing::IsEmpty());
}

TEST(Validate, TextHasFourPartsWithOrigins) {
  const std::vector<std::string> texts = validate(quickstart({"model.kv_heads=3"}), 1);
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_THAT(texts[0],
              ::testing::MatchesRegex("error: model.kv_heads does not divide model.heads\n"
                                      "  --> command line +model.kv_heads = 3\n"
                                      "  --> [^ ]*quickstart.toml:[0-9]+:1   model.heads = 4\n"
                                      "  why : 4 query heads mod 3 = 1; .*\n"
                                      "  try : model.kv_heads = 2 or 4"));
}

TEST(Validate, Model) {
  expect_each({
      {{"model.kv_heads=3"},
       "model.kv_heads does not divide model.heads",
       "4 query heads mod 3 = 1",
       "2 or 4"},
      {{"model.heads=5", "model.kv_heads=5", "model.head_dim=0"},
       "model.heads does not divide model.hidden",
       "128 mod 5 = 3",
       "model.heads = 4 or 8"},
      {{"model.head_dim=31"}, "model.head_dim is odd", "pairs", "30 or 32"},
      {{"model.hidden=4", "model.heads=8", "model.kv_heads=8", "model.head_dim=0"},
       "model.head_dim is 0",
       "4 / 8",
       "fewer heads"},
      {{"model.hidden=16", "model.ffn=0", "moe.layer_freq=2"},
       "model.ffn is 0",
       "8/3 of 16",
       "set model.ffn"},
      {{"model.precision=fp64", "run.backend=cuda"},
       "fp64 on a GPU",
       "only the CPU",
       "run.backend = cpu"},
      {{"model.attention=mla"},
       "grouped-query and latent attention together",
       "one key and value head",
       "remove"},
      {{"model.hidden=10000000", "model.vocab=100000000"},
       "impossible size",
       "e+15 parameters",
       "too many digits"},
      {{"model.seq=100000000", "batch.micro=1000000"},
       "impossible size",
       "numbers",
       "too many digits"},
  });
  EXPECT_THAT(violations({"model.precision=fp64", "run.backend=auto"}), ::testing::IsEmpty());
  EXPECT_THAT(violations({"model.hidden=16", "model.ffn=0"}), ::testing::IsEmpty())
      << "no dense layer";
}

TEST(Validate, Moe) {
  expect_each({
      {{"moe.top_k=9"}, "moe.top_k is above moe.experts", "9 of 8 experts", "at most 8"},
      {{"moe.top_k=1"},
       "top-1 with a softmax after the choice",
       "no gradient",
       "pre_softmax = true"},
      {{"moe.router.bias_rate=0.001"}, "a routing bias with softmax scores", "scores", "sigmoid"},
      {{"moe.pad_to_capacity=true"},
       "padding to a capacity that is not set",
       "capacity factor",
       "set moe.capacity_factor"},
      {{"moe.shared_gate=true"},
       "an option of the shared expert without a shared expert",
       "shared_ffn is 0",
       "set"},
      {{"moe.shared_overlap=true"},
       "an option of the shared expert without a shared expert",
       "shared_ffn is 0",
       "set"},
      {{"moe.shared_overlap=true", "moe.shared_ffn=64", "moe.dispatcher=allgather"},
       "shared-expert overlap with the all-gather dispatcher",
       "all-to-alls",
       "alltoall"},
      {{"moe.experts=0"}, "moe.ffn without experts", "dense model", "remove moe.ffn"},
      {{"moe.experts=0", "moe.ffn=0", "moe.shared_ffn=8"},
       "moe.shared_ffn without experts",
       "dense model",
       "remove"},
      {{"moe.layer_freq=0"}, "moe.layer_freq is 0", "every n-th", "moe.experts = 0"},
      {{"moe.layer_freq=[1,0,1]"},
       "moe.layer_freq has the wrong length",
       "3 elements for 4 layers",
       "list of 4"},
      {{"moe.layer_freq=[]"}, "moe.layer_freq has the wrong length", "0 elements", "list of 4"},
      {{"moe.layer_freq=[1,0,2,1]"},
       "moe.layer_freq has an element that is neither 0 nor 1",
       "each element",
       "0 or 1"},
      {{"moe.router.balance=[aux_loss,seq_aux_loss]"},
       "moe.router.aux_coeff and moe.router.balance have different lengths",
       "2 losses and 1 coefficients",
       "2"},
      {{"moe.router.balance=[aux_loss,aux_loss]", "moe.router.aux_coeff=[1,1]"},
       "moe.router.balance contradicts itself",
       "once",
       "each name once"},
      {{"moe.router.balance=[aux_loss,none]", "moe.router.aux_coeff=[1,1]"},
       "moe.router.balance contradicts itself",
       "none stands alone",
       "each name once"},
      {{"moe.router.group_topk=2"},
       "group-limited routing needs both moe.router.groups and moe.router.group_topk",
       "first",
       "both"},
      {{"moe.router.groups=2"},
       "group-limited routing needs both moe.router.groups and moe.router.group_topk",
       "first",
       "both"},
      {{"moe.router.groups=3", "moe.router.group_topk=1"},
       "moe.router.groups does not divide moe.experts",
       "8 experts mod 3 = 2",
       "2 or 4"},
      {{"moe.router.groups=2", "moe.router.group_topk=3"},
       "moe.router.group_topk is above moe.router.groups",
       "3 of 2",
       "at most 2"},
      {{"moe.router.groups=8", "moe.router.group_topk=1"},
       "the groups of a token have fewer experts than it uses",
       "1 groups of 1 experts, top-2",
       "larger"},
  });
  EXPECT_THAT(violations({"moe.top_k=1", "moe.router.pre_softmax=true"}), ::testing::IsEmpty());
  EXPECT_THAT(violations({"moe.layer_freq=[1,0,0,1]"}), ::testing::IsEmpty());
}

TEST(Validate, ForceRouting) {
  const std::string what = "debug.force_routing cannot be used";
  for (const char* legal :
       {"none", "balanced", "uniform_random", "all_to:[0,7]", "skip:[1]", "power_law:1.2"}) {
    EXPECT_THAT(violations({std::string("debug.force_routing=") + legal}), ::testing::IsEmpty())
        << legal;
  }
  for (const char* illegal : {"all", "all_to:[8,0]", "all_to:[0]", "skip:[]",
                              "skip:[0,1,2,3,4,5,6]", "power_law:-1", "power_law:"}) {
    expect_each({{{std::string("debug.force_routing=") + illegal},
                  what,
                  "debug.force_routing",
                  "power_law:1.5"}});
  }
}

TEST(Validate, Parallel) {
  const Overrides sp = {"parallel.tensor=2", "parallel.sequence=true"};
  const auto with = [](Overrides base, const Overrides& more) {
    base.insert(base.end(), more.begin(), more.end());
    return base;
  };
  expect_each({
      {{"parallel.tensor=2"},
       "the dense grid does not divide the ranks",
       "3 ranks mod (tensor 2",
       "2 or 4 ranks",
       3},
      {{"parallel.expert=4"},
       "the expert grid does not divide the ranks",
       "6 ranks mod (expert_tensor 1 * expert 4",
       "4 or 8 ranks",
       6},
      {{"parallel.expert=3"},
       "parallel.expert does not divide moe.experts",
       "8 experts mod 3 = 2",
       "parallel.expert = 2 or 4",
       3},
      {{"parallel.expert=2", "moe.experts=0", "moe.ffn=0"},
       "expert parallelism without experts",
       "nothing to share",
       "parallel.expert = 1",
       2},
      {{"parallel.expert_tensor=3"},
       "parallel.expert_tensor does not divide moe.ffn",
       "256 channels mod 3 = 1",
       "2 or 4",
       3},
      {with(sp, {"moe.shared_ffn=33"}), "parallel.tensor does not divide moe.shared_ffn",
       "33 channels mod 2 = 1", "1 or 3", 2},
      {{"parallel.tensor=3"},
       "parallel.tensor does not divide model.heads",
       "4 heads mod 3 = 1",
       "2 or 4",
       3},
      {{"parallel.tensor=4"},
       "parallel.tensor does not divide model.kv_heads",
       "2 heads mod 4 = 2",
       "parallel.tensor = 2",
       4},
      {with(sp, {"model.ffn=65"}), "parallel.tensor does not divide model.ffn",
       "65 channels mod 2 = 1", "1 or 5", 2},
      {with(sp, {"model.vocab=265"}), "parallel.tensor does not divide model.vocab",
       "265 rows mod 2 = 1", "1 or 5", 2},
      {with(sp, {"model.seq=127"}), "parallel.tensor does not divide model.seq",
       "127 tokens mod 2 = 1", "1 or 127", 2},
      {{"parallel.sequence=true"},
       "sequence parallelism without tensor parallelism",
       "tensor-parallel ranks",
       "false"},
      {{"parallel.tensor=2"},
       "tensor parallelism of a MoE model without sequence parallelism",
       "same tokens",
       "true",
       2},
      {{"parallel.context=2", "model.seq=130"},
       "model.seq cannot be cut over the context ranks",
       "130 tokens mod 4 = 2",
       "128 or 132",
       2},
      {{"parallel.virtual_stages=2"},
       "virtual stages without a pipeline",
       "bubble",
       "virtual_stages = 1"},
      {{"parallel.pipeline=3"},
       "the stages do not divide model.layers",
       "4 layers mod (pipeline 3",
       "2 or 4 stages",
       3},
      {{"parallel.pipeline=2", "parallel.virtual_stages=2", "parallel.microbatch_group=1"},
       "parallel.microbatch_group is out of range",
       "between the 2 stages and the 8 micro-batches",
       "= 2",
       2},
      {{"parallel.pipeline=2", "parallel.virtual_stages=2", "parallel.microbatch_group=9"},
       "parallel.microbatch_group is out of range",
       "8 micro-batches",
       "= 2",
       2},
      {{"parallel.pipeline=2", "parallel.virtual_stages=2", "parallel.microbatch_group=7"},
       "the last group of micro-batches is shorter than the pipeline",
       "8 micro-batches mod 7 = 1",
       "4 or 8",
       2},
  });
  EXPECT_THAT(
      violations(
          {"parallel.pipeline=2", "parallel.virtual_stages=2", "parallel.microbatch_group=6"}, 2),
      ::testing::IsEmpty())
      << "a last group of 2 fills 2 stages";
}

TEST(Validate, Layout) {
  const std::string unread = "parallel.layout cannot be read";
  for (const char* illegal : {"Ett|ttX", "E(tt|)ttL", "E(t*2|*2", "Et*|tttL", "Et*0ttttL",
                              "E((t)*2)*2L", "Et*99999999999999999999L", "Et*4)L"}) {
    expect_each(
        {{{std::string("parallel.layout='") + illegal + "'"}, unread, "repeated as", "Et*3"}});
  }
  expect_each({
      {{"parallel.layout='tE|tttL'"},
       "parallel.layout does not begin with E and end with L",
       "tE|tttL",
       "E first"},
      {{"parallel.layout='EEtttt|L'"},
       "parallel.layout does not begin with E and end with L",
       "EEtttt|L",
       "each once"},
      {{"parallel.layout='Et*3|L'"},
       "parallel.layout has the wrong number of layers",
       "3 times t for 4",
       "4 times"},
      {{"parallel.layout='Et|t|ttL'", "parallel.pipeline=2"},
       "parallel.pipeline does not divide the stages of parallel.layout",
       "3 stages mod 2 = 1",
       "1 or 3",
       2},
      {{"parallel.layout='Et|t|t|tL'", "parallel.pipeline=2", "parallel.virtual_stages=2"},
       "parallel.virtual_stages and parallel.layout together",
       "over parallel.pipeline",
       "= 1",
       2},
  });
  const std::map<std::string, int64_t> legal = {
      {"Et*2|t*2L", 2}, {"E,tt | tt,L", 2}, {"E(t|)*4L", 5}, {"E||ttttL", 3}};
  for (const auto& [layout, stages] : legal) {
    EXPECT_THAT(violations({"parallel.layout='" + layout + "'",
                            "parallel.pipeline=" + std::to_string(stages)},
                           stages),
                ::testing::IsEmpty())
        << layout;
  }
}

TEST(Validate, Training) {
  const std::string wsd = "optimizer.schedule=wsd";
  expect_each({
      {{"batch.global=15"},
       "batch.global is not a multiple of the samples of one pass",
       "15 samples mod (micro 2 * 4 data-parallel ranks = 8) = 7",
       "batch.global = 8 or 16",
       4},
      {{"batch.ramp=[2,2]"}, "batch.ramp needs three numbers", "it has 2", "first size"},
      {{"batch.ramp=[3,2,100]"},
       "batch.ramp does not lead to batch.global",
       "from 3 in steps of 2 to 16",
       "multiples"},
      {{"optimizer.min_lr=1"}, "optimizer.min_lr is above optimizer.lr", "to 1", "at most 0.002"},
      {{"optimizer.warmup_steps=300"},
       "the warm-up is not shorter than the schedule",
       "300 steps of warm-up",
       "below 300"},
      {{wsd}, "schedule wsd needs optimizer.wsd_decay", "final decay", "optimizer.wsd_decay"},
      {{"optimizer.wsd_decay=5"}, "optimizer.wsd_decay without schedule wsd", "final decay", "wsd"},
      {{wsd, "optimizer.wsd_decay=290"},
       "the final decay begins before the warm-up ends",
       "20 + 290 steps",
       "280"},
      {{"optimizer.betas=[0.9]"}, "optimizer.betas needs two numbers", "it has 1", "[0.9, 0.95]"},
      {{"optimizer.overlap_param_gather=true"},
       "optimizer.overlap_param_gather alone",
       "distributed",
       "true"},
      {{"optimizer.precision_aware=true"},
       "optimizer.precision_aware alone",
       "distributed AdamW",
       "true"},
      {{"debug.throw_at={rank=0}"},
       "debug.throw_at needs a rank and a step",
       "not set",
       "rank = 0"},
      {{"debug.throw_at={rank=2,step=1}"},
       "debug.throw_at.rank is not a rank of this run",
       "2 ranks",
       "at most 1",
       2},
      {{"run.stop_at_step=301"},
       "run.stop_at_step is after the end of the run",
       "300 steps",
       "at most 300"},
      {{"checkpoint.resume="}, "checkpoint.resume is empty", "resume from", "auto"},
      {{"checkpoint.resume=none", "checkpoint.weights_only=true"},
       "weights of no checkpoint",
       "none",
       "path"},
  });
  EXPECT_THAT(violations({wsd, "optimizer.wsd_decay=280"}), ::testing::IsEmpty());
  EXPECT_THAT(violations({"batch.ramp=[4,4,100]"}), ::testing::IsEmpty());
  EXPECT_THAT(violations({"optimizer.schedule=constant", "run.steps=3"}), ::testing::IsEmpty());
}

TEST(Validate, Data) {
  expect_each({
      {{"data.train=[]"}, "no training data", "empty", "ferry data build"},
      {{"data.valid=[]"}, "evaluation without validation data", "neither", "run.eval_every = 0"},
      {{"data.train=[0.3,a,b]"}, "data.train mixes paths and numbers", "1 numbers among 3", "[0.7"},
      {{"data.valid=[a,0.3]"}, "data.valid mixes paths and numbers", "1 numbers among 2", "[0.7"},
      {{"data.train=[-1,a,2,b]"},
       "data.train has weights that cannot be used",
       "at least 0",
       "[0.7"},
      {{"data.train=[0,a]"}, "data.train has weights that cannot be used", "above 0", "[0.7"},
      {{"data.split='9,x'", "data.valid=[]"},
       "data.split cannot be read",
       "relative sizes",
       "969,30,1"},
      {{"data.split='1,1,1,1'", "data.valid=[]"},
       "data.split cannot be read",
       "relative sizes",
       "969,30,1"},
      {{"data.split='0,0,0'", "data.valid=[]"},
       "data.split cannot be read",
       "relative sizes",
       "969,30,1"},
      {{"data.split='99,1,0'"}, "data.split and data.valid together", "both", "remove"},
  });
  EXPECT_THAT(violations({"data.kind=synthetic", "data.train=[]", "data.valid=[]"}),
              ::testing::IsEmpty());
  EXPECT_THAT(violations({"data.split='99,1,0'", "data.valid=[]"}), ::testing::IsEmpty());
  EXPECT_THAT(violations({"data.train=[0.3,a,0.7,b]"}), ::testing::IsEmpty());
}

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
      {"layer offload of every layer", {"layer_offload.layers=4"}},
      {"layer offload with a pipeline", {"layer_offload.layers=1", "parallel.pipeline=2"}},
      {"layer offload with recompute", {"layer_offload.layers=1", selective}},
      {"layer offload with graphs of modules", {"layer_offload.layers=1", "cuda_graph.impl=local"}},
      {"layer offload of nothing", {"layer_offload.layers=1", "layer_offload.activations=false"}},
      {"full recompute without a plan", {"recompute.granularity=full"}},
      {"a plan of layers without full recompute", {selective, "recompute.method=block"}},
      {"selective recompute of nothing", {selective, "recompute.modules=[]"}},
      {"recompute of mla_up_proj without latent attention",
       {selective, "recompute.modules=[mla_up_proj]"}},
      {"recompute of shared experts that overlap",
       {selective, "recompute.modules=[shared_experts]", "moe.shared_ffn=64",
        "moe.shared_overlap=true"}},
      {"full recompute with graphs of modules", full_and("cuda_graph.impl=local")},
      {"shared saved activations alone", full_and("recompute.distribute_saved_activations=true")},
      {"shared saved activations with sequence parallelism",
       {full[0], full[1], full[2], "recompute.distribute_saved_activations=true",
        "parallel.tensor=2", "parallel.sequence=true"}},
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

TEST(Validate, EveryFeatureThatIsMissingIsRefusedByName) {
  // By key; where a key has several rows, a value for each.
  const std::map<std::string, std::vector<Overrides>> cases = {
      {"parallel.tensor", {{"parallel.tensor=2"}}},
      {"parallel.expert", {{"parallel.expert=2"}}},
      {"parallel.expert_tensor", {{"parallel.expert_tensor=2"}}},
      {"parallel.pipeline", {{"parallel.pipeline=2"}}},
      {"parallel.layout", {{"parallel.layout='Et*4L'"}}},
      {"parallel.context", {{"parallel.context=2"}}},
      {"model.attention", {{"model.attention=mla"}}},
      {"moe.capacity_factor", {{"moe.capacity_factor=1.0"}}},
      {"moe.rank_capacity_factor", {{"moe.rank_capacity_factor=1.0"}}},
      {"moe.shared_overlap", {{"moe.shared_overlap=true"}}},
      {"moe.dispatcher", {{"moe.dispatcher=allgather"}}},
      {"moe.fused_experts", {{"moe.fused_experts=true"}}},
      {"moe.router.score", {{"moe.router.score=sigmoid"}}},
      {"moe.router.balance",
       {{"moe.router.balance=seq_aux_loss"}, {"moe.router.balance=global_aux_loss"}}},
      {"moe.router.bias_rate", {{"moe.router.bias_rate=0.001"}}},
      {"moe.router.groups", {{"moe.router.groups=2"}}},
      {"moe.router.scaling_factor", {{"moe.router.scaling_factor=2.5"}}},
      {"moe.router.dtype", {{"moe.router.dtype=fp64"}}},
      {"moe.router.jitter", {{"moe.router.jitter=0.1"}}},
      {"batch.ramp", {{"batch.ramp=[4,4,100]"}}},
      {"optimizer.name", {{"optimizer.name=sgd"}}},
      {"optimizer.distributed", {{"optimizer.distributed=true"}}},
      {"optimizer.overlap_grad_reduce", {{"optimizer.overlap_grad_reduce=true"}}},
      {"optimizer.offload.enabled", {{"optimizer.offload.enabled=true"}}},
      {"optimizer.offload.dump_param_groups", {{"optimizer.offload.dump_param_groups=a.json"}}},
      {"activation_offload.enabled", {{"activation_offload.enabled=true"}}},
      {"recompute.granularity", {{"recompute.granularity=selective"}}},
      {"layer_offload.layers", {{"layer_offload.layers=1"}}},
      {"paged_stash.enabled", {{"paged_stash.enabled=true"}}},
      {"cuda_graph.impl", {{"cuda_graph.impl=local"}}},
      {"data.document_mask", {{"data.document_mask=true"}}},
      {"debug.delay_copies_us", {{"debug.delay_copies_us=1"}}},
      {"debug.delay_compute_us", {{"debug.delay_compute_us=1"}}},
      {"debug.dump_routing", {{"debug.dump_routing=true"}}},
      {"debug.dump_token_loss", {{"debug.dump_token_loss=true"}}},
      {"debug.slow_writer_mb_s", {{"debug.slow_writer_mb_s=1"}}},
      {"debug.log_samples", {{"debug.log_samples=true"}}},
  };
  std::set<std::string> keys;
  for (const Exclusion& row : unsupported_features()) {
    keys.insert(row.keys[0]);
    EXPECT_FALSE(row.applies(quickstart({}))) << row.what;
    ASSERT_EQ(cases.count(row.keys[0]), 1u) << "no case for " << row.what;
    bool applies = false;
    for (const Overrides& overrides : cases.at(row.keys[0])) {
      applies = applies || row.applies(quickstart(overrides));
    }
    EXPECT_TRUE(applies) << row.what;
    EXPECT_THAT(row.what, HasSubstr(" is not in this version of Ferry (0.1)"));
    EXPECT_THAT(row.fix, ::testing::StartsWith("use "));
  }
  EXPECT_EQ(keys.size(), cases.size());
  const std::vector<std::string> texts =
      validate(quickstart({"cuda_graph.impl=full_iteration"}), 1);
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_EQ(texts[0],
            "error: the capture of CUDA graphs is not in this version of Ferry (0.1)\n"
            "  --> command line   cuda_graph.impl = \"full_iteration\"\n"
            "  why : the configuration is legal, and this version cannot run it\n"
            "  try : use cuda_graph.impl = none");
}

TEST(Nearest, DivisorsAndMultiples) {
  EXPECT_EQ(nearest_divisors(64, 6), "4 or 8");
  EXPECT_EQ(nearest_divisors(64, 100), "64");
  EXPECT_EQ(nearest_divisors(7, 2), "1 or 7");
  EXPECT_EQ(nearest_divisors(8, 8), "8");
  EXPECT_EQ(nearest_multiples(8, 15), "8 or 16");
  EXPECT_EQ(nearest_multiples(8, 3), "8");
  EXPECT_EQ(nearest_multiples(8, 16), "16");
}

}  // namespace
}  // namespace ferry
