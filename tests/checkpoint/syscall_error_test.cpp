// Every single system call that touches a file of the run fails with EIO, ENOSPC or EINTR, or
// writes only half: a save reports it or made a checkpoint that verifies, a load reports it or
// loads the right values. Every call with FERRY_LONG_FAULTS=1, else some.

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "tests/checkpoint/traced_run.h"

namespace ferry {
namespace {

using testing::name_of;
using testing::SyscallFault;
using testing::SyscallPlan;
using testing::TracedCall;
using testing::TracedRun;
using testing::TracedTrial;

class SyscallError : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string defect = testing::tracing_defect();
    if (!defect.empty()) GTEST_SKIP() << defect;
  }

  struct Count {
    int errors = 0, warnings = 0, survived = 0;
    int total() const { return errors + warnings + survived; }
  };

  void record(const std::string& fault, const Count& count) {
    RecordProperty(fault + "_errors", count.errors);
    RecordProperty(fault + "_warnings", count.warnings);
    RecordProperty(fault + "_survived", count.survived);
  }

  /// One save with one fault, and what is left of it. Returns false if the fault could not be made.
  bool try_save(const SyscallPlan& plan, Count& count) {
    TracedTrial trial;
    const TracedRun run = trial.save(plan);
    if (!run.is_hit) return false;
    const TracedCall& call = run.calls[static_cast<size_t>(plan.at)];
    const testing::Outcome& outcome = trial.outcome();
    SCOPED_TRACE(concat("call ", plan.at, ": ", name_of(call), ": ", outcome.text));
    const bool is_silent = outcome.is_acknowledged && outcome.text[0] == 0;
    count.survived += is_silent;
    count.warnings += outcome.is_acknowledged && !is_silent;
    count.errors += !outcome.is_acknowledged;

    EXPECT_EQ(run.exit_code, outcome.is_acknowledged ? 0 : 1);
    EXPECT_TRUE(outcome.is_acknowledged || outcome.is_storage_error);
    if (plan.fault == SyscallFault::Fail && plan.error != EINTR && testing::is_change(call.name)) {
      EXPECT_FALSE(is_silent);
      EXPECT_NE(outcome.said().find(std::strerror(plan.error)), std::string::npos);
    }
    if (plan.error == EINTR && (testing::is_write(call.name) || testing::is_read(call.name))) {
      EXPECT_TRUE(is_silent);
    }
    if (plan.fault == SyscallFault::ShortWrite) {
      EXPECT_TRUE(is_silent);
    } else if (plan.error != EINTR && is_silent) {
      EXPECT_TRUE(testing::may_fail_silently(call));
    }
    EXPECT_EQ(trial.newest_after_restart(), outcome.is_acknowledged ? 30 : 20);
    return true;
  }

  void save_with(const std::string& fault, int error, int first) {
    const auto save = [](TracedTrial& trial, const auto& plan) { return trial.save(plan); };
    const int calls = static_cast<int>(testing::calls_of(save).size());
    ASSERT_GT(calls, 100);
    Count count;
    int points = 0;
    for (int i = testing::first_point(first); i < calls; i += testing::stride(17), ++points) {
      EXPECT_TRUE(try_save({SyscallFault::Fail, i, error}, count));
    }
    EXPECT_EQ(count.total(), points);  // all are accounted for
    EXPECT_GT(count.errors, 0);
    record(fault, count);
  }
};

TEST_F(SyscallError, EioInASaveIsReported) { save_with("EIO", EIO, 0); }
TEST_F(SyscallError, EnospcInASaveIsReported) { save_with("ENOSPC", ENOSPC, 5); }
TEST_F(SyscallError, EintrInASaveIsReportedOrSurvived) { save_with("EINTR", EINTR, 11); }

TEST_F(SyscallError, ShortWritesAreContinued) {
  const auto save = [](TracedTrial& trial, const auto& plan) { return trial.save(plan); };
  const auto calls = testing::calls_of(save);
  Count count;
  int writes = 0;
  for (int i = 0; i < static_cast<int>(calls.size()); ++i) {
    if (!testing::is_write(calls[static_cast<size_t>(i)].name)) continue;
    if (writes++ % testing::stride(3) != 0) continue;
    EXPECT_TRUE(try_save({SyscallFault::ShortWrite, i}, count));
  }
  EXPECT_GT(count.survived, 3);
  record("short_write", count);
}

TEST_F(SyscallError, InALoadIsReportedOrSurvived) {
  const auto load = [](TracedTrial& trial, const auto& plan) { return trial.load(plan); };
  const int calls = static_cast<int>(testing::calls_of(load).size());
  ASSERT_GT(calls, 20);
  for (const int error : {EIO, ENOSPC, EINTR}) {
    Count count;
    int points = 0;
    for (int i = testing::first_point(error % 5); i < calls; i += testing::stride(5), ++points) {
      TracedTrial trial;
      const TracedRun run = trial.load({SyscallFault::Fail, i, error});
      const TracedCall& call = run.calls[static_cast<size_t>(i)];
      const testing::Outcome& outcome = trial.outcome();
      SCOPED_TRACE(concat("call ", i, ": ", name_of(call), ": ", outcome.text));
      EXPECT_TRUE(run.is_hit);
      const bool is_silent = outcome.text[0] == 0;
      if (outcome.is_acknowledged) {
        // A checkpoint that could not be read is named and passed over; what is loaded is right.
        EXPECT_EQ(outcome.step, is_silent ? 20 : 10);
        EXPECT_TRUE(outcome.is_equal);
      } else {
        EXPECT_TRUE(outcome.is_storage_error);
        EXPECT_FALSE(is_silent);
      }
      if (testing::is_read(call.name)) {
        EXPECT_EQ(is_silent, error == EINTR);
      } else if (is_silent && error != EINTR) {
        EXPECT_EQ(call.name, "close");
      }
      count.survived += is_silent;
      count.warnings += outcome.is_acknowledged && !is_silent;
      count.errors += !outcome.is_acknowledged;
      EXPECT_EQ(trial.newest_after_restart(), 20);  // a load changes nothing
    }
    EXPECT_EQ(count.total(), points);
    record(concat("load_", strerrorname_np(error)), count);
  }
}

}  // namespace
}  // namespace ferry
