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
      {"cuda_graph.impl", {{"cuda_graph.impl=local"}}},
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
      validate(quickstart({"cuda_graph.impl=full_iteration"}), 1);
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_EQ(texts[0],
            "error: the capture of CUDA graphs is not in this version of Ferry (0.1)\n"
            "  --> command line   cuda_graph.impl = \"full_iteration\"\n"
            "  why : the configuration is legal, and this version cannot run it\n"
            "  try : use cuda_graph.impl = none");
}

}  // namespace
}  // namespace ferry
