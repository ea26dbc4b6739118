#include "optim/lr_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

LrSchedule schedule_of(LrKind kind) {
  return {.kind = kind,
          .lr = 4e-4,
          .min_lr = 4e-5,
          .warmup_steps = 10,
          .decay_steps = 110,
          .wsd_decay = kind == LrKind::Wsd ? 20 : 0};
}

void expect_rates(const LrSchedule& schedule,
                  const std::vector<std::pair<int64_t, double>>& golden) {
  schedule.check();
  for (const auto& [step, rate] : golden) {
    EXPECT_NEAR(schedule.at(step), rate, rate * 1e-14) << "step " << step;
  }
}

void expect_refused(const LrSchedule& schedule, const std::string& text) {
  try {
    schedule.check();
    ADD_FAILURE() << "accepted, expected: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Usage);
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

TEST(LrSchedule, ConstantKeepsTheRateAfterTheWarmUp) {
  expect_rates(schedule_of(LrKind::Constant),
               {{1, 4e-5}, {5, 2e-4}, {10, 4e-4}, {11, 4e-4}, {110, 4e-4}, {1000, 4e-4}});
}

TEST(LrSchedule, LinearFallsToTheMinimum) {
  expect_rates(schedule_of(LrKind::Linear), {{1, 4e-5},
                                             {10, 4e-4},
                                             {11, 3.964e-4},
                                             {35, 3.1e-4},
                                             {60, 2.2e-4},
                                             {85, 1.3e-4},
                                             {109, 4.36e-5},
                                             {110, 4e-5},
                                             {111, 4e-5},
                                             {1000, 4e-5}});
}

TEST(LrSchedule, CosineFallsToTheMinimum) {
  expect_rates(schedule_of(LrKind::Cosine), {{1, 4e-5},
                                             {10, 4e-4},
                                             {11, 3.999111808658317e-4},
                                             {35, 3.4727922061357855e-4},
                                             {85, 9.272077938642147e-5},
                                             {109, 4.008881913416832e-5},
                                             {60, 2.2e-4},
                                             {110, 4e-5},
                                             {111, 4e-5},
                                             {1000, 4e-5}});
}

TEST(LrSchedule, WsdIsConstantAndThenFallsLinearly) {
  expect_rates(schedule_of(LrKind::Wsd), {{1, 4e-5},
                                          {10, 4e-4},
                                          {11, 4e-4},
                                          {60, 4e-4},
                                          {90, 4e-4},
                                          {91, 3.82e-4},
                                          {100, 2.2e-4},
                                          {109, 5.8e-5},
                                          {110, 4e-5},
                                          {111, 4e-5},
                                          {1000, 4e-5}});
}

TEST(LrSchedule, WithoutWarmUpTheDecayStartsAtOnce) {
  const LrSchedule schedule{.kind = LrKind::Linear, .lr = 1, .decay_steps = 4};
  expect_rates(schedule, {{1, 0.75}, {2, 0.5}, {3, 0.25}, {4, 0}, {5, 0}});
}

TEST(LrSchedule, WsdMayFallRightAfterTheWarmUp) {
  const LrSchedule schedule{
      .kind = LrKind::Wsd, .lr = 1, .warmup_steps = 2, .decay_steps = 6, .wsd_decay = 4};
  expect_rates(schedule, {{1, 0.5}, {2, 1}, {3, 0.75}, {4, 0.5}, {5, 0.25}, {6, 0}});
}

TEST(LrSchedule, ConstantIgnoresTheDecay) {
  const LrSchedule schedule{.kind = LrKind::Constant, .lr = 1, .warmup_steps = 8};
  expect_rates(schedule, {{4, 0.5}, {8, 1}, {9, 1}});
}

TEST(LrSchedule, RefusesRatesThatAreNotOrdered) {
  LrSchedule schedule = schedule_of(LrKind::Cosine);
  schedule.min_lr = 5e-4;
  expect_refused(schedule, "optimizer.min_lr = 0.0005 must be in [0, optimizer.lr = 0.0004]");
  schedule.min_lr = -1;
  expect_refused(schedule, "optimizer.min_lr = -1 must be in");
  schedule.min_lr = std::nan("");
  expect_refused(schedule, "optimizer.min_lr = nan must be in");
  schedule.lr = std::numeric_limits<double>::infinity();
  expect_refused(schedule, "optimizer.lr = inf must be a finite number of at least 0");
  schedule.lr = -1e-3;
  expect_refused(schedule, "optimizer.lr = -0.001 must be a finite number of at least 0");
}

TEST(LrSchedule, RefusesStepsThatDoNotFit) {
  LrSchedule schedule = schedule_of(LrKind::Linear);
  schedule.warmup_steps = -1;
  expect_refused(schedule, "optimizer.warmup_steps = -1 must be at least 0");
  schedule.warmup_steps = 110;
  expect_refused(schedule,
                 "optimizer.warmup_steps = 110 must be below optimizer.decay_steps = 110");
  schedule = schedule_of(LrKind::Cosine);
  schedule.wsd_decay = 5;
  expect_refused(schedule, "optimizer.wsd_decay = 5 needs optimizer.schedule = \"wsd\"");
  schedule = schedule_of(LrKind::Wsd);
  schedule.wsd_decay = 0;
  expect_refused(schedule, "optimizer.wsd_decay = 0 must be in [1, 100]");
  schedule.wsd_decay = 101;
  expect_refused(schedule, "optimizer.wsd_decay = 101 must be in [1, 100]");
}

TEST(LrSchedule, StepsCountFromOne) { EXPECT_THROW(schedule_of(LrKind::Cosine).at(0), Error); }

TEST(LrKind, HasTheNamesOfTheConfiguration) {
  EXPECT_EQ(lr_kind("constant"), LrKind::Constant);
  EXPECT_EQ(lr_kind("linear"), LrKind::Linear);
  EXPECT_EQ(lr_kind("cosine"), LrKind::Cosine);
  EXPECT_EQ(lr_kind("wsd"), LrKind::Wsd);
  try {
    lr_kind("sqrt");
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Usage);
    EXPECT_STREQ(error.what(),
                 "optimizer.schedule = \"sqrt\" is not known: use constant, linear, cosine or wsd");
  }
}

}  // namespace
}  // namespace ferry
