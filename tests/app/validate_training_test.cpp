#include "app/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/app/violations.h"

namespace ferry {
namespace {

using testing::expect_each;
using testing::violations;

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
      {{"optimizer.warmup_steps=300", "optimizer.decay_steps=300"},
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
      {{"optimizer.overlap_param_gather=true", "optimizer.distributed=false"},
       "optimizer.overlap_param_gather alone",
       "distributed",
       "true"},
      {{"optimizer.overlap_param_gather=true", "optimizer.overlap_grad_reduce=false"},
       "optimizer.overlap_param_gather alone",
       "in the order in which it reduced gradients",
       "true"},
      {{"optimizer.precision_aware=true", "optimizer.distributed=false"},
       "optimizer.precision_aware alone",
       "distributed AdamW",
       "true"},
      {{"optimizer.precision_aware=true", "optimizer.name=sgd"},
       "optimizer.precision_aware alone",
       "distributed AdamW",
       "optimizer.name = adamw"},
      {{"optimizer.exp_avg_dtype=bf16"},
       "optimizer.exp_avg_dtype without optimizer.precision_aware",
       "asked for by name",
       "optimizer.exp_avg_dtype = fp32, or optimizer.precision_aware = true"},
      {{"optimizer.exp_avg_sq_dtype=bf16"},
       "optimizer.exp_avg_sq_dtype without optimizer.precision_aware",
       "asked for by name",
       "optimizer.exp_avg_sq_dtype = fp32, or optimizer.precision_aware = true"},
      {{"optimizer.precision_aware=true", "optimizer.exp_avg_dtype=bf16", "model.precision=fp64"},
       "moments of an fp64 model in bf16",
       "all state of an fp64 model is fp64",
       "optimizer.exp_avg_dtype = fp32"},
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
      {{"checkpoint.keep=1"}, "checkpoint.keep is 1", "nothing would be left", "2 or more"},
      {{"checkpoint.resume="}, "checkpoint.resume is empty", "resume from", "auto"},
      {{"checkpoint.resume=none", "checkpoint.weights_only=true"},
       "weights of no checkpoint",
       "none",
       "path"},
  });
  EXPECT_THAT(violations({wsd, "optimizer.wsd_decay=280"}), ::testing::IsEmpty());
  EXPECT_THAT(violations({"batch.ramp=[4,4,100]"}), ::testing::IsEmpty());
  EXPECT_THAT(violations({"optimizer.schedule=constant", "run.steps=3"}), ::testing::IsEmpty());
  EXPECT_THAT(violations({"run.steps=3"}), ::testing::IsEmpty()) << "a part of the warm-up";
}

TEST(Validate, OptimizersThatAreLegal) {
  using Overrides = testing::Overrides;
  for (const Overrides& overrides :
       {Overrides{"optimizer.name=sgd", "optimizer.distributed=false"},
        Overrides{"optimizer.precision_aware=true"},
        Overrides{"optimizer.precision_aware=true", "optimizer.exp_avg_dtype=bf16",
                  "optimizer.exp_avg_sq_dtype=bf16"},
        // Offload needs neither: its host part is of full precision.
        Overrides{"optimizer.offload.enabled=true", "optimizer.name=sgd",
                  "optimizer.distributed=false"},
        Overrides{"optimizer.offload.enabled=true", "optimizer.offload.fraction=auto"},
        // Said of a part that is switched off.
        Overrides{"optimizer.offload.fraction=0.5", "optimizer.offload.take=last",
                  "optimizer.offload.threads=3"},
        Overrides{"optimizer.offload.dump_param_groups=a.json"}})
    EXPECT_THAT(testing::violations(overrides), ::testing::IsEmpty())
        << ::testing::PrintToString(overrides);
}

}  // namespace
}  // namespace ferry
