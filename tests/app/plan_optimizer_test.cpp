#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "app/plan.h"
#include "app/rank_memory.h"
#include "offload/optimizer_fraction.h"
#include "tests/app/small_run.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class PlanOptimizer : public ::testing::Test {
 protected:
  RunConfig run_of(std::vector<std::string> overrides, int64_t ranks = 1) {
    overrides.emplace_back("model.precision=bf16");
    return testing::parallel_run(dir_, overrides, ranks);
  }
  static std::string table_of(const RunConfig& config, const MachineRates& rates = {}) {
    return optimizer_table(make_plan(config, config.fewest_ranks(), rates), config);
  }
  testing::TempDir dir_;
  const std::string on_ = "optimizer.offload.enabled=true";
};

TEST_F(PlanOptimizer, SaysWhereTheStateIs) {
  const std::string without = table_of(run_of({}));
  EXPECT_THAT(without, HasSubstr("\nits optimizer, GiB\n  device masters "));
  EXPECT_THAT(without, Not(HasSubstr("host")));
  const std::string all = table_of(run_of({on_}));
  EXPECT_THAT(all, Not(HasSubstr("device masters")));
  for (const char* row : {"host masters", "host moments", "host gradients", "host weights"})
    EXPECT_THAT(all, HasSubstr(concat("\n  ", row)));
  EXPECT_THAT(all,
              HasSubstr("\n  fraction        1 of the parameters on the host, the first ones\n"));
  EXPECT_THAT(all, HasSubstr(" s at 55 GB/s), "));
  const std::string some =
      table_of(run_of({on_, "optimizer.offload.fraction=0.5", "optimizer.offload.take=last"}));
  EXPECT_THAT(some, HasSubstr("device masters"));
  EXPECT_THAT(some, HasSubstr("host masters"));
  EXPECT_THAT(some, HasSubstr("0.5 of the parameters on the host, the last ones\n"));
}

TEST_F(PlanOptimizer, EachStageHasAColumn) {
  EXPECT_THAT(table_of(run_of({on_, "parallel.pipeline=2"}, 2)),
              HasSubstr("  pipeline rank                0             1\n  host masters"));
}

TEST_F(PlanOptimizer, AFractionThatIsLeftToTheRun) {
  RunConfig config = run_of({on_, "optimizer.offload.fraction=auto"});
  EXPECT_FALSE(make_plan(config, 1, {}).chosen_fraction);
  EXPECT_THAT(table_of(config), HasSubstr("chosen in the run, or from --device-gib; here all on "
                                          "the host\n"));
  config.optimizer.offload.auto_goal = "hidden";
  const MachineRates rates{55e9, 500e12, int64_t{1} << 40};
  EXPECT_FALSE(make_plan(config, 1, rates).chosen_fraction);
  EXPECT_THAT(table_of(config, rates), HasSubstr("chosen in the run; here all on the host\n"));
}

TEST_F(PlanOptimizer, AFractionFromTheMemoryOfADevice) {
  const RunConfig config = run_of({on_, "optimizer.offload.fraction=auto"});
  // Of a device that leaves so much beside the reserve.
  const auto device_of = [](int64_t bytes) {
    int64_t device = bytes;
    while (device - device_reserve(device) < bytes) device += std::max<int64_t>(1, bytes / 10000);
    return device;
  };
  const auto memory_at = [&](double fraction) {
    return stage_memory(with_fraction(config, fraction), 1, 0).total();
  };
  const auto plan_of = [&](int64_t device_bytes) {
    return make_plan(config, 1, {55e9, 500e12, device_bytes});
  };
  ASSERT_GT(memory_at(0), memory_at(0.5));
  EXPECT_EQ(plan_of(device_of(memory_at(0))).chosen_fraction, 0.0);
  EXPECT_EQ(plan_of(memory_at(1)).chosen_fraction, 1.0) << "though it does not fit";
  const int64_t between = (memory_at(0) + memory_at(1)) / 2;
  const Plan plan = plan_of(device_of(between));
  ASSERT_TRUE(plan.chosen_fraction);
  const int64_t available = plan.rates.device_bytes - device_reserve(plan.rates.device_bytes);
  EXPECT_LE(plan.memory[0].total(), available);
  EXPECT_EQ(plan.memory[0].total(), memory_at(*plan.chosen_fraction));
  EXPECT_GT(memory_at(*plan.chosen_fraction - 0.01), available) << "the smallest that fits";
  EXPECT_THAT(optimizer_table(plan, config), HasSubstr(" GiB free\n"));
  // A fraction that is given stays.
  EXPECT_FALSE(
      make_plan(run_of({on_, "optimizer.offload.fraction=0.5"}), 1, plan.rates).chosen_fraction);
}

TEST_F(PlanOptimizer, TheHeadNamesTheState) {
  RunConfig config = run_of({on_});
  EXPECT_THAT(offload_line(make_plan(config, 1, {}), config),
              ::testing::ContainsRegex("^offload     [0-9.]+ GB of optimizer state\n$"));
  config.optimizer.offload.fraction = 0;
  EXPECT_EQ(offload_line(make_plan(config, 1, {}), config), "offload     nothing\n");
}

}  // namespace
}  // namespace ferry
