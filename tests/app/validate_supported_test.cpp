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

TEST(Validate, EveryFeatureThatIsMissingIsRefusedByName) {
  const std::string iteration = "cuda_graph.impl=full_iteration";
  const std::string local = "cuda_graph.impl=local";
  // By key; where a key has several rows, a value for each.
  const std::map<std::string, std::vector<Overrides>> cases = {
      {"parallel.context", {{"parallel.context=2"}}},
      {"model.attention", {{"model.attention=mla"}}},
      {"moe.capacity_factor", {{"moe.capacity_factor=1.0"}}},
      {"moe.shared_overlap", {{"moe.shared_overlap=true"}}},
      {"moe.router.score", {{"moe.router.score=sigmoid"}}},
      {"moe.router.balance",
       {{"moe.router.balance=seq_aux_loss"}, {"moe.router.balance=global_aux_loss"}}},
      {"moe.router.bias_rate", {{"moe.router.bias_rate=0.001"}}},
      {"moe.router.groups", {{"moe.router.groups=2"}}},
      {"moe.router.scaling_factor", {{"moe.router.scaling_factor=2.5"}}},
      {"moe.router.dtype", {{"moe.router.dtype=fp64"}}},
      {"moe.router.jitter", {{"moe.router.jitter=0.1"}}},
      {"batch.ramp", {{"batch.ramp=[4,4,100]"}}},
      {"cuda_graph.modules",
       {{local, "parallel.expert=2"},
        {local, "parallel.pipeline=2"},
        {local, "cuda_graph.modules=[attn]", "recompute.granularity=selective",
         "recompute.modules=[layernorm]"}}},
      {"cuda_graph.impl",
       {{iteration, "parallel.pipeline=2"},
        {iteration, "parallel.tensor=2"},
        {iteration, "parallel.expert=2"},
        {iteration, "model.hidden_dropout=0.1"},
        {iteration, "layer_offload.layers=1"},
        {iteration, "paged_stash.enabled=true"},
        {iteration, "moe.rank_capacity_factor=1.5"}}},
      {"data.document_mask", {{"data.document_mask=true"}}},
      {"debug.delay_copies_us", {{"debug.delay_copies_us=1"}}},
      {"debug.delay_compute_us", {{"debug.delay_compute_us=1"}}},
      {"debug.dump_routing", {{"debug.dump_routing=true"}}},
      {"debug.dump_token_loss", {{"debug.dump_token_loss=true"}}},
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
      validate(quickstart({local, "moe.router.score=sigmoid"}), 1);
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_EQ(texts[0],
            "error: sigmoid routing is not in this version of Ferry (0.1)\n"
            "  --> command line   moe.router.score = \"sigmoid\"\n"
            "  why : the configuration is legal, and this version cannot run it\n"
            "  try : use moe.router.score = softmax");
}

// Each of them, since they share the keys of the graphs.
void expect_refused(const std::vector<std::string>& graphs, const std::string& override,
                    const std::string& text) {
  std::vector<std::string> overrides = graphs;
  overrides.push_back(override);
  std::string texts;
  for (const std::string& error : validate(quickstart(overrides), 2)) texts += error + "\n";
  EXPECT_THAT(texts, HasSubstr("error: " + text)) << override;
  EXPECT_THAT(texts, HasSubstr("  try : use cuda_graph.")) << override;
  EXPECT_THAT(texts, HasSubstr("   " + override.substr(0, override.find('=')))) << override;
  for (const std::string& error : validate(quickstart({override}), 2))
    EXPECT_THAT(error, ::testing::Not(HasSubstr(text))) << override;
}

constexpr std::pair<const char*, const char*> kNoGraphs[] = {
    {"parallel.tensor=2", "a CUDA graph with tensor parallelism is"},
    {"model.hidden_dropout=0.1",
     "a CUDA graph with dropout, whose random numbers change from step to step, is"},
    {"model.attention_dropout=0.1", "a CUDA graph with dropout, whose random"},
    {"paged_stash.enabled=true",
     "a CUDA graph with the paged stash, whose steps may run again, is"},
    {"moe.rank_capacity_factor=1.5",
     "a CUDA graph with a bound on rows, whose steps may run again, is"},
};

TEST(Validate, AGraphOfTheIterationIsRefusedWithWhatItCannotHold) {
  const std::vector<std::string> iteration = {"cuda_graph.impl=full_iteration"};
  EXPECT_TRUE(validate(quickstart(iteration), 1).empty());
  EXPECT_TRUE(validate(quickstart({iteration[0], "recompute.granularity=selective",
                                   "recompute.modules=[layernorm,moe_act]",
                                   "activation_offload.enabled=true",
                                   "activation_offload.modules=[core_attn,moe_act]",
                                   "activation_offload.max_inflight=1"}),
                       1)
                  .empty());
  for (const auto& [override, text] : kNoGraphs) expect_refused(iteration, override, text);
  expect_refused(iteration, "parallel.pipeline=2", "a graph of the iteration in a pipeline is");
  for (const std::string ranks : {"parallel.expert=2", "parallel.expert_tensor=2"})
    expect_refused(iteration, ranks,
                   "a graph of the iteration with expert parallelism, whose counts of rows the "
                   "host needs, is");
  expect_refused(iteration, "layer_offload.layers=1",
                 "a graph of the iteration with layer offload");
}

TEST(Validate, GraphsOfModulesAreRefusedWithWhatTheyCannotHold) {
  const std::vector<std::string> layers = {"cuda_graph.impl=local"};
  const std::vector<std::string> parts = {"cuda_graph.impl=local",
                                          "cuda_graph.modules=[attn,moe_router,moe_preprocess]"};
  EXPECT_TRUE(validate(quickstart(layers), 1).empty());
  EXPECT_TRUE(validate(quickstart({parts[0], parts[1], "parallel.expert=2"}), 2).empty());
  EXPECT_TRUE(validate(quickstart({parts[0], parts[1], "activation_offload.enabled=true",
                                   "activation_offload.modules=[expert_fc1,moe_act]",
                                   "activation_offload.delay_until_graph=true"}),
                       1)
                  .empty());
  for (const auto& [override, text] : kNoGraphs) expect_refused(parts, override, text);
  expect_refused(layers, "parallel.expert=2", "a graph of MoE layers with expert parallelism");
  expect_refused({parts[0], "cuda_graph.modules=[moe]"}, "parallel.expert=2",
                 "a graph of MoE layers with expert parallelism");
  expect_refused(layers, "parallel.pipeline=2", "a graph of whole layers in a pipeline");
  expect_refused({parts[0], parts[1], "recompute.granularity=selective"},
                 "recompute.modules=[layernorm]",
                 "recompute of layernorm beside graphs of modules");
}

}  // namespace
}  // namespace ferry
