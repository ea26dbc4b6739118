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
      {"activation_offload.delay_until_graph", {{"activation_offload.delay_until_graph=true"}}},
      {"cuda_graph.impl",
       {{"cuda_graph.impl=local"},
        {iteration, "parallel.pipeline=2"},
        {iteration, "parallel.tensor=2"},
        {iteration, "parallel.expert=2"},
        {iteration, "model.hidden_dropout=0.1"},
        {iteration, "activation_offload.enabled=true"},
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
  const std::vector<std::string> texts = validate(quickstart({"cuda_graph.impl=local"}), 1);
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_EQ(texts[0],
            "error: the capture of CUDA graphs of modules is not in this version of Ferry (0.1)\n"
            "  --> command line   cuda_graph.impl = \"local\"\n"
            "  why : the configuration is legal, and this version cannot run it\n"
            "  try : use cuda_graph.impl = full_iteration, or cuda_graph.impl = none");
}

// Each of them, since they share the key of the graph.
TEST(Validate, AGraphOfTheIterationIsRefusedWithWhatItCannotHold) {
  const std::string iteration = "cuda_graph.impl=full_iteration";
  EXPECT_TRUE(validate(quickstart({iteration}), 1).empty());
  EXPECT_TRUE(validate(quickstart({iteration, "recompute.granularity=selective",
                                   "recompute.modules=[layernorm,moe_act]"}),
                       1)
                  .empty());
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"parallel.pipeline=2", "in a pipeline is"},
      {"parallel.tensor=2", "with tensor parallelism is"},
      {"parallel.expert=2", "with expert parallelism, whose counts of rows the host needs, is"},
      {"parallel.expert_tensor=2", "with expert parallelism, whose counts"},
      {"model.hidden_dropout=0.1", "with dropout, whose random numbers change from step to step,"},
      {"model.attention_dropout=0.1", "with dropout, whose random"},
      {"activation_offload.enabled=true", "with activation offload is"},
      {"layer_offload.layers=1", "with layer offload is"},
      {"paged_stash.enabled=true", "with the paged stash, whose steps may run again, is"},
      {"moe.rank_capacity_factor=1.5", "with a bound on rows, whose steps may run again, is"},
  };
  for (const auto& [override, text] : cases) {
    std::string texts;
    for (const std::string& error : validate(quickstart({iteration, override}), 2))
      texts += error + "\n";
    EXPECT_THAT(texts, HasSubstr("error: a graph of the iteration " + text)) << override;
    EXPECT_THAT(texts, HasSubstr("use cuda_graph.impl = none, or ")) << override;
    EXPECT_THAT(texts, HasSubstr("   " + override.substr(0, override.find('=')))) << override;
    for (const std::string& error : validate(quickstart({override}), 2))
      EXPECT_THAT(error, ::testing::Not(HasSubstr("graph of the iteration"))) << override;
  }
}

}  // namespace
}  // namespace ferry
