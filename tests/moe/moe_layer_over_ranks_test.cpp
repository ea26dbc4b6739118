#include <gtest/gtest.h>

#include "tests/moe/layer_over_ranks.h"

namespace ferry::testing {
namespace {

// The tokens of a micro-batch cut over tensor-parallel ranks, each of which has all experts: the
// balancing losses are those of the whole micro-batch, forced routing goes by its tokens, and the
// parts of the gradients add up.
TEST(MoeLayerOverRanks, PiecesOfAMicroBatchAreTheMicroBatch) {
  for (const MoeLayout& layout : {MoeLayout{1, 1, 1}, {2, 1, 1}, {4, 1, 1}}) {
    for (const char* mode : {"none", "balanced", "uniform_random", "skip:[1]"}) {
      expect_same_over_ranks({.force_routing = mode}, layout, 1e-12);
      expect_same_over_ranks({.pre_softmax = false,
                              .shared_ffn = 8,
                              .shared_gate = true,
                              .force_routing = mode,
                              .recompute = true},
                             layout, 1e-12);
    }
    expect_same_over_ranks({.top_k = 1, .shared_ffn = 8, .dtype = DType::F32}, layout, 1e-5);
  }
}

// Which parameters are the same on all ranks of a stage, and so are summed over them.
TEST(MoeLayerOverRanks, SaysWhoSumsWhichGradient) {
  std::vector<std::string> described;
  make_moe_layer({.shared_ffn = 8, .shared_gate = true}, {.rank = 1, .size = 2},
                 {.ep_rank = 1, .ep_size = 2})
      ->visit([&](Parameter& p) {
        const char* axis = p.axis == ReduceAxis::Dense    ? " dense"
                           : p.axis == ReduceAxis::Stage  ? " stage"
                           : p.axis == ReduceAxis::Expert ? " expert"
                                                          : " tied";
        described.push_back(concat(p.name.substr(13), p.shape, axis));
      });
  EXPECT_EQ(described,
            (std::vector<std::string>{
                "shared_experts/fc1/weight[8, 6] dense", "shared_experts/fc2/weight[6, 4] dense",
                "shared_experts/gate/weight[1, 6] stage", "router/weight[8, 6] stage",
                "experts/fc1/weight[4, 20, 6] expert", "experts/fc2/weight[4, 6, 10] expert"}));
}

}  // namespace
}  // namespace ferry::testing
