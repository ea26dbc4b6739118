#include "app/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/app/small_run.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

class PlanTest : public ::testing::Test {
 protected:
  RunConfig run_of(const std::vector<std::string>& layout, int64_t ranks) {
    return testing::parallel_run(dir_, layout, ranks);
  }
  testing::TempDir dir_;
};

TEST(WithCommas, GroupsThreeDigits) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(12345678), "12,345,678");
}

TEST_F(PlanTest, RatesDecideWhatCopiesHide) {
  const RunConfig config = run_of({"parallel.tensor=2"}, 2);
  const Plan plan = make_plan(config, 2, {10e9, 1e12});
  const double flops = forward_flops(config.gpt(), true).total() / 2;
  EXPECT_DOUBLE_EQ(plan.moe_layer.forward_flops, flops);
  EXPECT_DOUBLE_EQ(plan.moe_layer.hidden_bytes, flops * 10e9 / 1e12);
  EXPECT_DOUBLE_EQ(plan.moe_layer.copy_ratio(100), 100 / plan.moe_layer.hidden_bytes);
  EXPECT_LT(plan.dense_layer.forward_flops, plan.moe_layer.forward_flops);
  EXPECT_FALSE(plan.dense_layer.costs.empty());
  EXPECT_THAT(saved_tables(plan), HasSubstr("at 10 GB/s and 1 TFLOP/s (predicted)"));
}

}  // namespace
}  // namespace ferry
