// SIGKILL instead of every single system call that touches a file of the run, of a save and of a
// start: nothing acknowledged is lost, nothing is corrupt, and the next start goes on. Every point
// with FERRY_LONG_FAULTS=1, else some.

#include <gtest/gtest.h>

#include "tests/checkpoint/traced_run.h"

namespace ferry {
namespace {

using testing::name_of;
using testing::SyscallFault;
using testing::TracedRun;
using testing::TracedTrial;

class SyscallKill : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string defect = testing::tracing_defect();
    if (!defect.empty()) GTEST_SKIP() << defect;
  }
};

TEST_F(SyscallKill, DuringASaveLosesNothing) {
  const auto save = [](TracedTrial& trial, const auto& plan) { return trial.save(plan); };
  const int count = static_cast<int>(testing::calls_of(save).size());
  ASSERT_GT(count, 100);
  int points = 0, published = 0;
  for (int i = 0; i < count; i += testing::stride(7), ++points) {
    TracedTrial trial;
    const TracedRun run = trial.save({SyscallFault::Kill, i});
    SCOPED_TRACE(concat("call ", i, ": ", name_of(run.calls.back())));
    EXPECT_EQ(run.signal, SIGKILL);
    EXPECT_TRUE(run.is_hit);
    // Killed before it could be acknowledged: either of the two is right, but it must be whole.
    const int64_t newest = trial.newest_after_restart();
    EXPECT_GE(newest, trial.outcome().is_acknowledged ? 30 : 20);
    published += newest == 30;
  }
  EXPECT_GT(published, 0);
  EXPECT_LT(published, points);
  RecordProperty("points", points);
  RecordProperty("published", published);
}

TEST_F(SyscallKill, WhileAStepIsReplacedLosesNothing) {
  const auto save = [](TracedTrial& trial, const auto& plan) { return trial.save(plan, 20); };
  const int count = static_cast<int>(testing::calls_of(save).size());
  int points = 0;
  for (int i = testing::first_point(3); i < count; i += testing::stride(17), ++points) {
    TracedTrial trial;
    const TracedRun run = trial.save({SyscallFault::Kill, i}, 20);
    SCOPED_TRACE(concat("call ", i, ": ", name_of(run.calls.back())));
    EXPECT_EQ(run.signal, SIGKILL);
    EXPECT_EQ(trial.newest_after_restart(), 20);
  }
  RecordProperty("points", points);
}

TEST_F(SyscallKill, DuringAStartLosesNothing) {
  const auto begin = [](TracedTrial& trial, const auto& plan) { return trial.begin(plan); };
  const int count = static_cast<int>(testing::calls_of(begin).size());
  ASSERT_GT(count, 20);
  int points = 0;
  for (int i = testing::first_point(2); i < count; i += testing::stride(5), ++points) {
    TracedTrial trial;
    const TracedRun run = trial.begin({SyscallFault::Kill, i});
    SCOPED_TRACE(concat("call ", i, ": ", name_of(run.calls.back())));
    EXPECT_EQ(run.signal, SIGKILL);
    EXPECT_EQ(trial.newest_after_restart(), 20);
  }
  RecordProperty("points", points);
}

// A save that was killed left files behind; the start that cleans up is killed as well.
TEST_F(SyscallKill, DuringAStartAfterAKilledSaveLosesNothing) {
  const auto save = [](TracedTrial& trial, const auto& plan) { return trial.save(plan, 20); };
  const auto calls = testing::calls_of(save);
  int killed_at = 0;  // between setting aside and publishing
  while (name_of(calls[static_cast<size_t>(killed_at)]) != "rename step-00000020.a2.tmp")
    ++killed_at;
  const auto both = [&](TracedTrial& trial, const auto& plan) {
    trial.save({SyscallFault::Kill, killed_at}, 20);
    return trial.begin(plan);
  };
  const int count = static_cast<int>(testing::calls_of(both).size());
  int points = 0;
  for (int i = 0; i < count; i += testing::stride(9), ++points) {
    TracedTrial trial;
    const TracedRun run = both(trial, testing::SyscallPlan{SyscallFault::Kill, i});
    SCOPED_TRACE(concat("call ", i, ": ", name_of(run.calls.back())));
    EXPECT_EQ(run.signal, SIGKILL);
    EXPECT_EQ(trial.newest_after_restart(), 20);
  }
  RecordProperty("points", points);
}

}  // namespace
}  // namespace ferry
