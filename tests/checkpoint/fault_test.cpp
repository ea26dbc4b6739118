// Something fails at every single operation of a save in turn: the newest acknowledged checkpoint
// must always be loadable, and a save is either reported or there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/latest.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/checkpoint/sample_model.h"
#include "tests/checkpoint/thread_control.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using testing::Fault;
using testing::FaultyFileSystem;
using ::testing::HasSubstr;
using testing::SampleModel;
using testing::TempDir;

SampleModel small_model(uint32_t seed) {
  SampleModel model(seed);
  model.tensors().resize(4);
  return model;
}

enum class Outcome { Acknowledged, Error, Killed };

struct Trial {
  Outcome outcome = Outcome::Acknowledged;
  std::string message;
  std::vector<std::string> operations;
};

SaveReport save_small(const Path& run_dir, int64_t step, FileSystem& file_system) {
  testing::SaveOptions options;
  options.step = step;
  options.keep = 2;  // so that the third save also deletes
  options.chunk_bytes = 4096;
  options.file_system = &file_system;
  return testing::save_solo(run_dir, small_model(static_cast<uint32_t>(step)), options);
}

/// A run with good checkpoints of steps 10 and 20.
const Path& prepared_run() {
  static const TempDir run;
  static const bool is_ready = [] {
    SoloControl control;
    FaultyFileSystem harmless;
    begin_attempt(run.path(), control, harmless);
    save_small(run.path(), 10, harmless);
    save_small(run.path(), 20, harmless);
    return true;
  }();
  EXPECT_TRUE(is_ready);
  static const Path path = run.path();
  return path;
}

/// A copy of that run, and one more save that meets the fault at operation `fail_at`.
class FaultTrial {
 public:
  FaultTrial() {
    std::filesystem::copy(prepared_run(), run_.path(), std::filesystem::copy_options::recursive);
  }

  Trial run(int fail_at, Fault fault, int64_t step = 30) {
    FaultyFileSystem faulty(fail_at, fault);
    Trial trial;
    try {
      const SaveReport report = save_small(run_.path(), step, faulty);
      for (const std::string& warning : report.warnings) trial.message += warning;
    } catch (const Error& error) {
      trial.outcome = Outcome::Error;
      trial.message = error.what();
      EXPECT_EQ(error.code(), ExitCode::Storage);
    } catch (const testing::Killed&) {
      trial.outcome = Outcome::Killed;
    }
    trial.operations = faulty.operations();
    return trial;
  }

  /// The step that a new start would continue from; checks its content.
  int64_t newest_step() {
    SoloControl control;
    FaultyFileSystem harmless;
    begin_attempt(run_.path(), control, harmless);
    const Latest latest = find_latest(run_.path(), control);
    if (!latest.checkpoint) return -1;
    const auto step = static_cast<uint32_t>(latest.checkpoint->step());
    EXPECT_TRUE(testing::holds(*latest.checkpoint, small_model(step))) << step;
    EXPECT_TRUE(latest.unfinished.empty()) << latest.unfinished.front();
    return latest.checkpoint->step();
  }

  const TempDir& directory() const { return run_; }

 private:
  TempDir run_;
};

int number_of_operations() {
  return static_cast<int>(FaultTrial().run(-1, Fault::Fail).operations.size());
}

TEST(Faults, FailureOrShortWriteAtEveryOperationLosesNothing) {
  const int count = number_of_operations();
  ASSERT_GT(count, 50);
  int errors = 0, warnings = 0;
  for (const Fault fault : {Fault::Fail, Fault::ShortWrite}) {
    for (int i = 0; i < count; ++i) {
      FaultTrial trial;
      const Trial result = trial.run(i, fault);
      SCOPED_TRACE(concat("operation ", i, ": ", result.operations[static_cast<size_t>(i)], " ",
                          result.message));
      EXPECT_THAT(result.message, HasSubstr("injected error"));
      errors += result.outcome == Outcome::Error;
      warnings += result.outcome == Outcome::Acknowledged;
      // An error means that the previous one is the newest, a warning that the new one is.
      EXPECT_EQ(trial.newest_step(), result.outcome == Outcome::Error ? 20 : 30);
    }
  }
  EXPECT_GT(errors, 2 * count / 3);
  EXPECT_GT(warnings, 0);
}

TEST(Faults, DeathAtEveryOperationLosesNothing) {
  const int count = number_of_operations();
  const auto names = FaultTrial().run(-1, Fault::Fail).operations;
  const int publication = static_cast<int>(
      std::find(names.begin(), names.end(), "rename step-00000030.a1.tmp") - names.begin());
  ASSERT_LT(publication, count);
  for (int i = 0; i < count; ++i) {
    FaultTrial trial;
    const Trial result = trial.run(i, Fault::Kill);
    SCOPED_TRACE(concat("operation ", i, ": ", result.operations.back()));
    EXPECT_EQ(result.outcome, Outcome::Killed);
    EXPECT_EQ(trial.newest_step(), i <= publication ? 20 : 30);
  }
}

TEST(Faults, ReplacingAStepNeverLosesIt) {
  const int count = static_cast<int>(FaultTrial().run(-1, Fault::Fail, 20).operations.size());
  for (const Fault fault : {Fault::Fail, Fault::Kill}) {
    for (int i = 0; i < count; ++i) {
      FaultTrial trial;
      const Trial result = trial.run(i, fault, 20);
      SCOPED_TRACE(concat("operation ", i, ": ", result.operations[static_cast<size_t>(i)]));
      EXPECT_EQ(trial.newest_step(), 20);
    }
  }
}

TEST(Faults, DataThatReadsBackWronglyIsNotAcknowledged) {
  const auto names = FaultTrial().run(-1, Fault::Fail).operations;
  const auto published = std::find(names.begin(), names.end(), "rename step-00000030.a1.tmp");
  int lies = 0;
  for (int i = static_cast<int>(published - names.begin()); i < static_cast<int>(names.size());
       ++i) {
    if (names[static_cast<size_t>(i)] != "read shard-00000.h5") continue;
    FaultTrial trial;
    const Trial result = trial.run(i, Fault::Lie);
    EXPECT_EQ(result.outcome, Outcome::Error);
    EXPECT_THAT(result.message, HasSubstr("was not saved"));
    EXPECT_THAT(result.message, HasSubstr("is damaged"));
    EXPECT_EQ(trial.newest_step(), 20);
    ++lies;
  }
  EXPECT_GT(lies, 3);
}

TEST(Faults, AFailedSaveCanBeRepeatedAtOnce) {
  FaultTrial trial;
  EXPECT_EQ(trial.run(30, Fault::ShortWrite).outcome, Outcome::Error);
  EXPECT_EQ(trial.run(-1, Fault::Fail).outcome, Outcome::Acknowledged);
  EXPECT_EQ(trial.newest_step(), 30);
}

TEST(Faults, EveryFileIsSyncedAfterItsLastWriteAndTheManifestComesLast) {
  const auto names = FaultTrial().run(-1, Fault::Fail).operations;
  const auto last = [&](const std::string& name) {
    const auto found = std::find(names.rbegin(), names.rend(), name);
    EXPECT_NE(found, names.rend()) << name;
    return names.rend() - found;
  };
  const auto first = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) - names.begin() + 1;
  };
  EXPECT_LT(last("write shard-00000.h5"), last("fsync shard-00000.h5"));
  EXPECT_LT(last("fsync shard-00000.h5"), first("create MANIFEST.json"));
  EXPECT_LT(last("fsync global.h5"), first("create MANIFEST.json"));
  EXPECT_LT(last("write MANIFEST.json"), last("fsync MANIFEST.json"));
  EXPECT_LT(last("fsync MANIFEST.json"), last("fsync step-00000030.a1.tmp"));
  EXPECT_LT(last("fsync step-00000030.a1.tmp"), first("rename step-00000030.a1.tmp"));
  EXPECT_LT(first("rename step-00000030.a1.tmp"), last("read shard-00000.h5"));
  EXPECT_EQ(names[static_cast<size_t>(first("rename step-00000030.a1.tmp"))], "fsync ckpt");
  EXPECT_LT(last("read shard-00000.h5"), first("rename LATEST.tmp"));
  EXPECT_LT(first("rename LATEST.tmp"), first("rename step-00000010"));
  EXPECT_LT(first("rename step-00000010"), first("unlink shard-00000.h5"));
}

TEST(Faults, AFailureOfOneRankIsTheErrorOfAll) {
  const TempDir run;
  const SampleModel model;
  FaultyFileSystem shared;  // rank 1 fails when it creates its shard, its first operation
  FaultyFileSystem failing(0, Fault::Fail);
  const auto errors = testing::run_ranks(2, [&](Control& control) {
    begin_attempt(run.path(), control, shared);
    testing::RankSlices slices(model, control.rank(), 2);
    testing::SaveOptions options;
    options.file_system = control.rank() == 0 ? &shared : &failing;
    save_checkpoint(testing::sample_request(run.path(), slices.to_save(), options), control);
  });
  EXPECT_THAT(errors[0],
              HasSubstr("the checkpoint of step 60 was not saved: rank 1: cannot create"));
  EXPECT_EQ(errors[1], errors[0]);
  EXPECT_TRUE(list_steps(posix_file_system(), run.path()).empty());
  EXPECT_FALSE(std::filesystem::exists(run.path() / "ckpt" / "step-00000060.a1.tmp"));
}

TEST(Faults, TooLittleSpaceIsFoundBeforeWriting) {
  FaultTrial trial;
  FaultyFileSystem faulty;
  faulty.set_status({.free_bytes = 1000, .free_files = 1000, .type = "ext4"});
  testing::SaveOptions options;
  options.step = 30;
  options.file_system = &faulty;
  const std::string message = testing::storage_error(
      [&] { testing::save_solo(trial.directory().path(), SampleModel(), options); });
  EXPECT_THAT(message, HasSubstr("not enough space in"));
  EXPECT_THAT(message, HasSubstr("free space, or lower checkpoint.keep"));
  EXPECT_EQ(
      std::count(faulty.operations().begin(), faulty.operations().end(), "create shard-00000.h5"),
      0);
  EXPECT_EQ(trial.newest_step(), 20);
}

}  // namespace
}  // namespace ferry
