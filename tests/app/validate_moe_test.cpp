#include "app/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/app/violations.h"

namespace ferry {
namespace {

using testing::expect_each;
using testing::violations;

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

}  // namespace
}  // namespace ferry
