#include "app/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "app/config_file.h"
#include "core/check.h"
#include "tests/app/violations.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;

class RunDirectory : public ::testing::Test {
 protected:
  void put(const fs::path& path, const std::string& text = "x\n") {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  testing::TempDir temp_;
  const fs::path run_ = temp_ / "run";
};

TEST_F(RunDirectory, ANewOneIsMade) {
  EXPECT_EQ(prepare_run_directory(run_, false, false), "");
  EXPECT_TRUE(fs::is_directory(run_ / "log"));
}

TEST_F(RunDirectory, WhatAStartWritesBeforeItsFirstStepIsNoRun) {
  for (const char* name : {"resolved.toml", "command.txt", "env.json", "events.jsonl",
                           "log/run.log", "ckpt/EPOCH.000001"})
    put(run_ / name);
  put(run_ / "metrics.jsonl", "");
  EXPECT_FALSE(holds_a_run(run_));
  EXPECT_EQ(prepare_run_directory(run_, false, false), "");
  EXPECT_EQ(prepare_run_directory(run_, true, false), "");
  EXPECT_TRUE(fs::exists(run_ / "resolved.toml"));
}

TEST_F(RunDirectory, AnEarlierRunIsNeverStartedAnewSilently) {
  for (const char* trace :
       {"metrics.jsonl", "LATEST", "ckpt/step-00000010/x", "ckpt/step-00000010.a1.tmp/x"}) {
    put(run_ / trace);
    EXPECT_TRUE(holds_a_run(run_)) << trace;
    const std::string text =
        error_of(ExitCode::Usage, [&] { prepare_run_directory(run_, false, false); });
    EXPECT_THAT(text, HasSubstr(run_.string() + " holds an earlier run"));
    EXPECT_THAT(text, HasSubstr("try : run.fresh=true"));
    EXPECT_FALSE(fs::exists(run_ / "log")) << "refused before anything is written";
    fs::remove_all(run_);
  }
}

TEST_F(RunDirectory, AStartThatContinuesTakesIt) {
  put(run_ / "metrics.jsonl");
  EXPECT_EQ(prepare_run_directory(run_, false, true), "");
  EXPECT_TRUE(fs::exists(run_ / "metrics.jsonl"));
}

TEST_F(RunDirectory, FreshRenamesTheEarlierRunAside) {
  put(run_ / "metrics.jsonl", "first\n");
  EXPECT_EQ(prepare_run_directory(run_, true, false), run_.string() + ".before-1");
  EXPECT_FALSE(fs::exists(run_ / "metrics.jsonl"));
  EXPECT_TRUE(fs::exists(run_.string() + ".before-1/metrics.jsonl"));
  put(run_ / "metrics.jsonl", "second\n");
  // Also where the start continues another run's checkpoint.
  EXPECT_EQ(prepare_run_directory(run_, true, true), run_.string() + ".before-2");
  EXPECT_TRUE(fs::exists(run_.string() + ".before-1/metrics.jsonl"));
}

TEST_F(RunDirectory, AFileInTheWayIsAStorageError) {
  put(run_, "a file");
  const std::string text =
      error_of(ExitCode::Storage, [&] { prepare_run_directory(run_, false, false); });
  EXPECT_THAT(text, HasSubstr("cannot prepare the run directory " + run_.string()));
  EXPECT_THAT(text, HasSubstr("why : Not a directory"));
  error_of(ExitCode::Storage, [&] { prepare_run_directory(run_ / "below", false, false); });
}

TEST_F(RunDirectory, LaterCheckpointsOfAnotherBranchAreRefused) {
  refuse_other_branch(run_, 0, false);
  fs::create_directories(run_ / "ckpt" / "step-00000010");
  fs::create_directories(run_ / "ckpt" / "step-00000030");
  refuse_other_branch(run_, 30, false);
  refuse_other_branch(run_, 40, false);
  refuse_other_branch(run_, 10, true);  // fresh: they are renamed aside
  const std::string text = error_of(ExitCode::Usage, [&] { refuse_other_branch(run_, 10, false); });
  EXPECT_THAT(text, HasSubstr("has a checkpoint of step 30, and this start begins at step 10"));
}

TEST_F(RunDirectory, KnowsWhatIsInside) {
  fs::create_directories(run_ / "ckpt");
  EXPECT_TRUE(is_inside(run_, run_));
  EXPECT_TRUE(is_inside(run_ / "ckpt" / "step-00000010", run_));
  EXPECT_TRUE(is_inside(run_ / "ckpt" / ".." / "x", run_));
  EXPECT_FALSE(is_inside(temp_.path(), run_));
  EXPECT_FALSE(is_inside(temp_ / "run2", run_));
  fs::create_symlink(run_, temp_ / "link");
  EXPECT_TRUE(is_inside(temp_ / "link" / "ckpt", run_));
}

TEST_F(RunDirectory, DescribesTheStart) {
  prepare_run_directory(run_, false, false);
  const RunConfig config = testing::quickstart({"run.dir='" + run_.string() + "'"});
  describe_run(run_, config, Mesh(2, {}), {"rank 0: a", "rank 1: b"}, "ferry train a.toml", "cpu");
  const RunConfig again = load_valid_config((run_ / "resolved.toml").string(), {}, 2);
  EXPECT_EQ(again.model.hidden, config.model.hidden);
  EXPECT_EQ(again.run.dir, run_.string());
  const auto text = [&](const char* name) {
    std::ifstream in(run_ / name);
    return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  };
  EXPECT_EQ(text("command.txt"), "ferry train a.toml\n");
  EXPECT_EQ(text("grid.txt"), Mesh(2, {}).table() + "rank 0: a\nrank 1: b\n");
  const auto env = nlohmann::json::parse(text("env.json"));
  EXPECT_EQ(env.at("backend"), "cpu");
  EXPECT_EQ(env.at("ranks"), 2);
  EXPECT_TRUE(env.contains("git"));
}

TEST_F(RunDirectory, ErrorsOfARankHaveALog) {
  prepare_run_directory(run_, false, false);
  log_error(run_, 7, "error: one");
  log_error(run_, 7, "error: two");
  std::ifstream in(run_ / "log" / "rank-0007.log");
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  EXPECT_THAT(text, ::testing::MatchesRegex("20..-..-..T..:..:..Z error: one\n"
                                            "20..-..-..T..:..:..Z error: two\n"));
  log_error(temp_ / "absent", 0, "error: three");  // nothing to say it to
}

TEST_F(RunDirectory, WhatCannotBeWrittenIsAStorageError) {
  const RunConfig config = testing::quickstart({});
  EXPECT_THAT(error_of(ExitCode::Storage,
                       [&] { describe_run(temp_ / "absent", config, Mesh(1, {}), {}, "", "cpu"); }),
              HasSubstr("cannot write"));
}

}  // namespace
}  // namespace ferry
