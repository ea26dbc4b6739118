#include "checkpoint/directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

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

TEST(Names, AreWrittenAndReadBack) {
  EXPECT_EQ(step_directory_name(60), "step-00000060");
  EXPECT_EQ(temporary_directory_name(60, 7), "step-00000060.a7.tmp");
  EXPECT_EQ(aside_directory_name(60, 7), "step-00000060.a7.aside");
  EXPECT_EQ(shard_file_name(12), "shard-00012.h5");
  EXPECT_EQ(step_of_directory("step-00000060"), 60);
  EXPECT_EQ(step_of_directory("step-123456789"), 123456789);
  EXPECT_EQ(attempt_of_temporary("step-00000060.a7.tmp"), 7);
  for (const char* name : {"step-60", "step-0000006x", "step-000000060", "step-",
                           "step-00000060.a7.tmp", "step--0000060", "trash", "step-00000060 "}) {
    EXPECT_FALSE(step_of_directory(name).has_value()) << name;
  }
  for (const char* name : {"step-00000060", "step-00000060.a.tmp", "step-60.a7.tmp",
                           "step-00000060.a7", "step-00000060.a7.aside"}) {
    EXPECT_FALSE(attempt_of_temporary(name).has_value()) << name;
  }
  EXPECT_TRUE(is_checkpoint_file("global.h5"));
  EXPECT_TRUE(is_checkpoint_file("shard-00012.h5"));
  for (const char* name :
       {"", "shard-12.h5", "shard-000012.h5", "a/global.h5", "../global.h5", "MANIFEST.json"}) {
    EXPECT_FALSE(is_checkpoint_file(name)) << name;
  }
}

TEST(Attempts, CountUpAndOnlyTheNewestMaySave) {
  const TempDir run;
  EXPECT_EQ(begin(run.path()), 1);
  EXPECT_EQ(begin(run.path()), 2);
  const std::string message = testing::storage_error([&] { save(run.path(), 10, 2, 1); });
  EXPECT_THAT(message, HasSubstr("attempt 1 may not save to"));
  EXPECT_THAT(message, HasSubstr("attempt 2 of this run has started since"));
  EXPECT_TRUE(steps(run).empty());
  save(run.path(), 10, 2, 2);
  EXPECT_THAT(steps(run), ElementsAre(10));
}

TEST(Attempts, AllRanksGetTheSameNumber) {
  const TempDir run;
  const auto errors = testing::run_ranks(3, [&](Control& control) {
    if (begin_attempt(run.path() / "deep" / "run", control).number != 1) {
      throw std::runtime_error("another number");
    }
  });
  EXPECT_THAT(errors, ::testing::Each(""));
}

TEST(Attempts, UnusableDirectoriesAreNamedOnEveryRank) {
  const TempDir run;
  std::ofstream(run.path() / "file") << "not a directory";
  const auto errors = testing::run_ranks(
      2, [&](Control& control) { begin_attempt(run.path() / "file" / "run", control); });
  EXPECT_THAT(errors[0],
              HasSubstr("cannot create the directory " + (run.path() / "file").native()));
  EXPECT_EQ(errors[1], errors[0]);
}

TEST(Attempts, UnwritableDirectoriesAreFoundAtStart) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const TempDir run;
  ASSERT_EQ(::chmod(run.path().c_str(), 0500), 0);
  EXPECT_THAT(testing::storage_error([&] { begin(run.path()); }),
              HasSubstr("Permission denied; choose a directory that you may write"));
  ASSERT_EQ(::chmod(run.path().c_str(), 0700), 0);
}

TEST(Attempts, ReadOnlyFileSystemsAreFoundAtStart) {
  const std::string message = testing::storage_error([&] { begin("/proc/ferry-test"); });
  EXPECT_THAT(message, HasSubstr("cannot create the directory /proc/ferry-test"));
}

TEST(Attempts, StorageThatLosesBytesIsFoundAtStart) {
  testing::FaultyFileSystem counting;
  SoloControl control;
  const TempDir first;
  begin_attempt(first.path(), control, counting);
  const auto& names = counting.operations();
  const auto read = std::find(names.begin(), names.end(), "read renamed");
  ASSERT_NE(read, names.end());
  testing::FaultyFileSystem lying(static_cast<int>(read - names.begin()), testing::Fault::Lie);
  const TempDir second;
  EXPECT_THAT(testing::storage_error([&] { begin_attempt(second.path(), control, lying); }),
              HasSubstr("does not return what was written to it"));
}

TEST(Attempts, AnUnfinishedReplacementIsPutBack) {
  const TempDir run;
  begin(run.path());
  save(run.path(), 10, 2);
  std::filesystem::rename(run.path() / "ckpt/step-00000010",
                          run.path() / "ckpt/step-00000010.a1.aside");
  SoloControl control;
  const Attempt attempt = begin_attempt(run.path(), control);
  EXPECT_THAT(attempt.restored, ElementsAre("step-00000010"));
  EXPECT_THAT(steps(run), ElementsAre(10));
}

}  // namespace
}  // namespace ferry
