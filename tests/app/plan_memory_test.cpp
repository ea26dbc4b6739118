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
  EXPECT_EQ(offload_line(make_plan(config, 2, {})), "offload     nothing\n");
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
  EXPECT_THAT(offload_line(plan), HasSubstr("per step of pipeline rank 1,"));
  EXPECT_THAT(offload_tables(plan, config),
              HasSubstr("offload of a step of pipeline rank 1, predicted"));
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
