#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/plan.h"
#include "tests/app/small_run.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class PlanMemory : public ::testing::Test {
 protected:
  RunConfig run_of(const std::vector<std::string>& layout, int64_t ranks) {
    return testing::parallel_run(dir_, layout, ranks);
  }
  testing::TempDir dir_;
};

TEST_F(PlanMemory, EachStageHasAColumn) {
  const RunConfig config = run_of({"parallel.pipeline=2"}, 2);
  const Plan plan = make_plan(config, 2, {});
  ASSERT_EQ(plan.memory.size(), 2u);
  const std::string text = memory_tables(plan);
  EXPECT_THAT(text, HasSubstr("  pipeline rank                0             1\n  weights"));
  EXPECT_THAT(text, HasSubstr("  pipeline rank                0             1\n  attn_norm"));
  EXPECT_THAT(text, HasSubstr("\n  loss_head"));
  EXPECT_THAT(text, Not(HasSubstr("\n  stash"))) << "what nobody has is left out";
  EXPECT_EQ(plan.memory[0].activations, plan.activations[0].bytes());
}

TEST_F(PlanMemory, TheStageThatMovesMostIsShown) {
  RunConfig config = run_of({"parallel.pipeline=2"}, 2);
  EXPECT_EQ(offload_line(make_plan(config, 2, {}), config), "offload     nothing\n");
  EXPECT_EQ(offload_tables(make_plan(config, 2, {}), config), "");
  config.activation_offload.enabled = true;
  config.activation_offload.modules = {"expert_fc1"};
  config.activation_offload.min_tensor_elements = 1;
  const Plan plan = make_plan(config, 2, {});
  // The first stage has one layer with experts, the last one two, which keeps one of each pass.
  ASSERT_TRUE(plan.activations[0].offload && plan.activations[1].offload);
  const int64_t first = plan.activations[0].offload->forecast.d2h_bytes();
  const int64_t last = plan.activations[1].offload->forecast.d2h_bytes();
  EXPECT_GT(last, first);
  EXPECT_THAT(offload_line(plan, config), HasSubstr("per step of pipeline rank 1,"));
  EXPECT_THAT(
      offload_tables(plan, config),
      HasSubstr("offload in a step of pipeline rank 1, predicted at 55 GB/s and 500 TFLOP/s"));
}

TEST_F(PlanMemory, OfOneStageItsRankIsNotNamed) {
  RunConfig config = run_of({}, 1);
  config.layer_offload.layers = 2;
  const Plan plan = make_plan(config, 1, {});
  EXPECT_THAT(offload_line(plan, config), HasSubstr(" GB to the host and back per step, "));
  const std::string text = offload_tables(plan, config);
  EXPECT_THAT(text, HasSubstr("\noffload in a step, predicted at"));
  EXPECT_THAT(text, HasSubstr("\n  layer  "));
  EXPECT_THAT(text, HasSubstr("\n  groups          2 of 4 in a pass move\n"));
  const ActivationForecast& stage = plan.activations[0];
  EXPECT_LT(stage.bytes() + stage.copies, stage.bytes_without);
  EXPECT_THAT(memory_tables(plan), HasSubstr("\n  pinned, on host"));
  EXPECT_EQ(plan.memory[0].host, stage.host);
}

TEST_F(PlanMemory, WeightsThatMoveAreNamed) {
  RunConfig config = run_of({"model.precision=bf16"}, 1);
  config.layer_offload.layers = 3;
  config.layer_offload.weights = true;
  EXPECT_THAT(offload_line(make_plan(config, 1, {}), config),
              HasSubstr("(predicted), and the weights of the first 3 layers\n"));
  EXPECT_THAT(offload_tables(make_plan(config, 1, {}), config),
              HasSubstr("copies of weights are not counted here\n"));
  config.layer_offload.activations = false;
  const Plan plan = make_plan(config, 1, {});
  EXPECT_EQ(offload_line(plan, config), "offload     the weights of the first 3 layers\n");
  EXPECT_EQ(offload_tables(plan, config), "");
  EXPECT_GT(plan.memory[0].host, 0);
  EXPECT_EQ(plan.activations[0].host, 0);
}

TEST_F(PlanMemory, MegatronsNumbersAreBesideThoseOfTheFirstStage) {
  const RunConfig config = run_of({}, 1);
  const Plan plan = make_plan(config, 1, {});
  const std::string text = megatron_table(plan, config);
  EXPECT_THAT(text, HasSubstr("dense one of width 32; GiB"));
  EXPECT_THAT(text, HasSubstr("\n  weights + optimizer "));
  EXPECT_THAT(text, HasSubstr("\n  total "));
}

}  // namespace
}  // namespace ferry
