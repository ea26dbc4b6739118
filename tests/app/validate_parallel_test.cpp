#include "app/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/app/violations.h"

namespace ferry {
namespace {

using testing::expect_each;
using testing::Overrides;
using testing::violations;

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
      {with(sp, {"model.seq=127"}), "parallel.tensor does not divide model.seq",
       "127 tokens mod 2 = 1", "1 or 127", 2},
      {{"parallel.sequence=true"},
       "sequence parallelism without tensor parallelism",
       "tensor-parallel ranks",
       "false"},
      {{"parallel.tensor=2", "model.seq=127"},
       "parallel.tensor does not divide model.seq",
       "127 tokens mod 2 = 1",
       "1 or 127",
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
      {{"parallel.pipeline=2", "parallel.virtual_stages=2", "batch.global=2"},
       "parallel.microbatch_group is out of range",
       "between the 2 stages and the 1 micro-batches",
       "= 2",
       2},
      {{"parallel.layout=Ett|ttL"}, "virtual stages without a pipeline", "bubble", "pipeline = 2"},
  });
  const std::pair<Overrides, int64_t> legal[] = {
      // A last group of 2 fills 2 stages.
      {{"parallel.pipeline=2", "parallel.virtual_stages=2", "parallel.microbatch_group=6"}, 2},
      {with(sp, {"model.vocab=265"}), 2},  // padded
      {{"parallel.tensor=2"}, 2},          // the MoE layers deal out the tokens
      {{"parallel.tensor=2", "moe.experts=0", "moe.ffn=0", "model.seq=127"}, 2},
      {{"parallel.pipeline=4", "batch.global=2"}, 4},  // fewer micro-batches than stages
      {{"parallel.pipeline=2", "parallel.layout=Ettt|tL"}, 2},
  };
  for (const auto& [overrides, ranks] : legal)
    EXPECT_THAT(violations(overrides, ranks), ::testing::IsEmpty()) << overrides.front();
}

}  // namespace
}  // namespace ferry
