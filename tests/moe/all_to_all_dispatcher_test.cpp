#include "moe/all_to_all_dispatcher.h"

#include <gtest/gtest.h>

#include "tests/moe/dispatcher_over_ranks.h"
#include "tests/moe/layer_over_ranks.h"

namespace ferry::testing {
namespace {

constexpr MoeLayout kLayouts[] = {{1, 1, 1}, {1, 2, 1}, {1, 4, 1}, {1, 2, 2}, {1, 1, 2}};

MoeCase layer_case(MoeCase c = {}) {
  c.dispatcher = "alltoall";
  return c;
}

TEST(AllToAllDispatcher, OrdersRowsByExpertThenRankThenToken) {
  for (const MoeLayout& layout : kLayouts) expect_documented_order("alltoall", layout);
}

TEST(AllToAllDispatcher, LayerIsThatOfOneRank) {
  for (const MoeLayout& layout : kLayouts) {
    expect_same_over_ranks(layer_case(), layout, 1e-12);
    expect_same_over_ranks(layer_case({.pre_softmax = false, .shared_ffn = 8, .shared_gate = true}),
                           layout, 1e-12);
    expect_same_over_ranks(layer_case({.top_k = 8, .dtype = DType::F32}), layout, 1e-5);
  }
}

// All rows go to the experts of one rank, or of some: the others have none, forward and backward.
TEST(AllToAllDispatcher, RanksWithoutRowsTakePart) {
  for (const MoeLayout& layout : kLayouts) {
    for (const char* mode : {"all_to:[0]", "all_to:[7]"})
      expect_same_over_ranks(layer_case({.top_k = 1, .force_routing = mode}), layout, 1e-12);
    for (const char* mode : {"all_to:[2,3]", "skip:[0,1,2,3]", "power_law:2"})
      expect_same_over_ranks(layer_case({.shared_ffn = 8, .force_routing = mode}), layout, 1e-12);
  }
}

TEST(AllToAllDispatcher, SecondForwardUsesThePlanOfTheFirst) {
  for (const MoeLayout& layout : kLayouts)
    expect_same_over_ranks(layer_case({.shared_ffn = 8, .recompute = true}), layout, 1e-12);
}

TEST(AllToAllDispatcher, NeedsNoSideStream) {
  expect_same_over_ranks(layer_case({.shared_ffn = 8, .side_stream = false}), {1, 4, 1}, 1e-12);
}

TEST(AllToAllDispatcher, TokensOfAMicroBatchMayBeCutOverTensorParallelRanks) {
  for (const MoeLayout& layout : {MoeLayout{2, 2, 1}, {2, 4, 1}, {2, 2, 2}, {4, 2, 2}, {2, 1, 2}})
    for (const char* mode : {"none", "balanced", "uniform_random"})
      expect_same_over_ranks(
          layer_case({.shared_ffn = 8, .shared_gate = true, .force_routing = mode}), layout, 1e-12);
}

TEST(AllToAllDispatcher, Bf16IsCloseToOneRank) {
  expect_same_over_ranks(layer_case({.shared_ffn = 8, .dtype = DType::BF16}), {1, 4, 1}, 2e-2);
}

}  // namespace
}  // namespace ferry::testing
