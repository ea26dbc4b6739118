#include "checkpoint/retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "tests/checkpoint/saved_runs.h"

namespace ferry {
namespace {

using testing::begin;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::SampleModel;
using testing::save;
using testing::steps;
using testing::TempDir;

TEST(Retention, KeepsTheNewestAndDeletesTheRest) {
  const TempDir run;
  begin(run.path());
  for (const int64_t step : {10, 20, 30}) EXPECT_TRUE(save(run.path(), step, 3).removed.empty());
  EXPECT_THAT(save(run.path(), 40, 3).removed, ElementsAre("step-00000010"));
  EXPECT_THAT(steps(run), ElementsAre(20, 30, 40));
  EXPECT_THAT(save(run.path(), 50, 2).removed, ElementsAre("step-00000020", "step-00000030"));
  EXPECT_THAT(steps(run), ElementsAre(40, 50));
  EXPECT_TRUE(std::filesystem::is_empty(run.path() / "ckpt/trash"));
}

TEST(Retention, DamagedOnesDoNotCount) {
  const TempDir run;
  begin(run.path());
  for (const int64_t step : {10, 20, 30}) save(run.path(), step, 4);
  std::filesystem::remove(run.path() / "ckpt/step-00000020/global.h5");
  const SaveReport report = save(run.path(), 40, 3);
  EXPECT_TRUE(report.removed.empty());
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("step-00000020 is not usable")));
  EXPECT_THAT(save(run.path(), 50, 3).removed, ElementsAre("step-00000010", "step-00000020"));
}

TEST(Retention, NewerStepsAreLeftAlone) {
  const TempDir run;
  begin(run.path());
  for (const int64_t step : {10, 20, 60}) save(run.path(), step, 4);
  EXPECT_THAT(save(run.path(), 30, 2).removed, ElementsAre("step-00000010"));
  EXPECT_THAT(steps(run), ElementsAre(20, 30, 60));
}

TEST(Retention, FewerThanTwoAreRefused) {
  const TempDir run;
  begin(run.path());
  EXPECT_THROW(save(run.path(), 10, 1), Error);
}

}  // namespace
}  // namespace ferry
