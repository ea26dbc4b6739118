#include "app/bench_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "app/version.h"
#include "core/check.h"
#include "tests/app/small_run.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

class BenchCheckpoint : public ::testing::Test {
 protected:
  std::string run(double gib, bool json) {
    const auto runtime = Runtime::start();
    CheckpointBenchOptions options;
    options.gib = gib;
    options.directory = dir_.path().string();
    options.rounds = 2;
    options.json = json;
    options.command = "ferry bench checkpoint";
    ::testing::internal::CaptureStdout();
    const ExitCode code = bench_checkpoint(testing::small_run(dir_), *runtime, options);
    const std::string text = ::testing::internal::GetCapturedStdout();
    EXPECT_EQ(code, ExitCode::Done);
    return text;
  }

  testing::TempDir dir_;
};

TEST_F(BenchCheckpoint, MeasuresAndLeavesNothing) {
  const auto row = nlohmann::json::parse(run(0.01, true));
  EXPECT_EQ(row.at("bench"), "checkpoint");
  EXPECT_EQ(row.at("config"), "none");
  EXPECT_EQ(row.at("ranks"), 1);
  EXPECT_EQ(row.at("rounds"), 2);
  EXPECT_EQ(row.at("commit"), git_revision());
  EXPECT_EQ(row.at("command"), "ferry bench checkpoint");
  EXPECT_NEAR(row.at("bytes"), 0.01 * (1 << 30), 4096);
  for (const char* key : {"raw_write_gb_per_s", "raw_cached_write_gb_per_s", "raw_read_gb_per_s",
                          "save_write_gb_per_s", "save_write_of_raw", "save_verify_gb_per_s",
                          "load_gb_per_s", "load_of_raw", "save_s", "copy_s", "copy_of_save"})
    EXPECT_GT(row.at(key), 0.0) << key;
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

TEST_F(BenchCheckpoint, TakesTheSizeOfTheModel) {
  const std::string text = run(0, false);
  EXPECT_THAT(text, HasSubstr("0.00 GiB of state, 1 ranks"));
  EXPECT_THAT(text, HasSubstr("every digest checked"));
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

TEST_F(BenchCheckpoint, AnExistingDirectoryIsLeftAlone) {
  const std::filesystem::path there = dir_ / "ferry-bench-checkpoint";
  std::filesystem::create_directory(there);
  try {
    run(0.01, true);
    FAIL() << "no error";
  } catch (const Error& error) {
    ::testing::internal::GetCapturedStdout();
    EXPECT_EQ(error.code(), ExitCode::Storage);
    EXPECT_THAT(error.what(), HasSubstr("ferry-bench-checkpoint"));
  }
  EXPECT_TRUE(std::filesystem::exists(there));
}

}  // namespace
}  // namespace ferry
