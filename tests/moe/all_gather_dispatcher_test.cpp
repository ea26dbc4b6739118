#include "moe/all_gather_dispatcher.h"

#include <gtest/gtest.h>

#include "tests/moe/dispatcher_over_ranks.h"
#include "tests/moe/layer_over_ranks.h"

namespace ferry::testing {
namespace {

constexpr MoeLayout kLayouts[] = {{1, 1, 1}, {1, 2, 1}, {1, 4, 1}, {1, 2, 2}, {1, 1, 2}};

MoeCase layer_case(MoeCase c = {}) {
  c.dispatcher = "allgather";
  return c;
}

TEST(AllGatherDispatcher, OrdersRowsByExpertThenRankThenToken) {
  for (const MoeLayout& layout : kLayouts)
    for (const bool with_side : {true, false})
      expect_documented_order("allgather", layout, with_side);
}

TEST(AllGatherDispatcher, GradientsReturnBesideThePass) {
  for (const bool with_side : {true, false}) expect_gradients_return_beside("allgather", with_side);
}

TEST(AllGatherDispatcher, LayerIsThatOfOneRank) {
  for (const MoeLayout& layout : kLayouts) {
    expect_same_over_ranks(layer_case(), layout, 1e-12);
    expect_same_over_ranks(layer_case({.pre_softmax = false, .shared_ffn = 8, .shared_gate = true}),
                           layout, 1e-12);
    expect_same_over_ranks(layer_case({.top_k = 8, .dtype = DType::F32}), layout, 1e-5);
  }
}

// All rows go to the experts of one rank, or of some: the others have none, forward and backward.
TEST(AllGatherDispatcher, RanksWithoutRowsTakePart) {
  for (const MoeLayout& layout : kLayouts) {
    for (const char* mode : {"all_to:[0]", "all_to:[7]"})
      expect_same_over_ranks(layer_case({.top_k = 1, .force_routing = mode}), layout, 1e-12);
    for (const char* mode : {"all_to:[2,3]", "skip:[0,1,2,3]", "power_law:2"})
      expect_same_over_ranks(layer_case({.shared_ffn = 8, .force_routing = mode}), layout, 1e-12);
  }
}

TEST(AllGatherDispatcher, SecondForwardUsesThePlanOfTheFirst) {
  for (const MoeLayout& layout : kLayouts)
    expect_same_over_ranks(layer_case({.shared_ffn = 8, .recompute = true}), layout, 1e-12);
}

TEST(AllGatherDispatcher, TokensOfAMicroBatchMayBeCutOverTensorParallelRanks) {
  for (const MoeLayout& layout : {MoeLayout{2, 2, 1}, {2, 4, 1}, {2, 2, 2}, {4, 2, 2}, {2, 1, 2}})
    for (const char* mode : {"none", "balanced", "uniform_random"})
      expect_same_over_ranks(
          layer_case({.shared_ffn = 8, .shared_gate = true, .force_routing = mode}), layout, 1e-12);
}

TEST(AllGatherDispatcher, Bf16IsCloseToOneRank) {
  expect_same_over_ranks(layer_case({.shared_ffn = 8, .dtype = DType::BF16}), {1, 4, 1}, 2e-2);
}

}  // namespace
}  // namespace ferry::testing
