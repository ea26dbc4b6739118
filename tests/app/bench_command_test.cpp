#include "app/bench_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/device.h"
#include "core/ops/gemm_tuning.h"
#include "tests/app/small_run.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

class BenchCommand : public ::testing::Test {
 protected:
  void TearDown() override { set_gemm_tuning({}); }

  // The exit code of `ferry bench NAME CONFIG ARGUMENTS` for a small model; what it says is in
  // err_.
  int ferry(const std::string& name, const std::vector<std::string>& more) {
    const std::string config = (dir_ / "config.toml").string();
    std::ofstream(config) << resolved_toml(testing::small_run(dir_));
    std::vector<std::string> arguments = {"bench", name, config};
    arguments.insert(arguments.end(), more.begin(), more.end());
    CLI::App root{"ferry"};
    int code = -1;
    add_bench_command(root, code);
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    root.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    ::testing::internal::GetCapturedStdout();
    err_ = ::testing::internal::GetCapturedStderr();
    return code;
  }

  testing::TempDir dir_;
  const std::string cache_ = (dir_ / "gemm.json").string();
  std::string err_;
};

TEST_F(BenchCommand, ComparingAlgorithmsTakesNoneFromAFile) {
  EXPECT_EQ(ferry("gemm", {"--dense", "run.gemm_cache=" + cache_}), 2);
  EXPECT_THAT(err_,
              HasSubstr("error: ferry bench gemm --dense uses no file of measured algorithms, "
                        "and run.gemm_cache is " +
                        cache_));
  EXPECT_THAT(err_, HasSubstr("why : it compares the heuristic's algorithm with the fastest"));
  EXPECT_THAT(err_, HasSubstr("try : run.gemm_cache=''"));
  EXPECT_EQ(ferry("gemm", {"--dense", "run.gemm_cache=" + cache_, "run.gemm_cache=''"}), 2);
  EXPECT_THAT(err_, HasSubstr("this run is on the CPU"));
}

TEST_F(BenchCommand, TakesMeasuredProductsFromTheFile) {
  if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  const std::vector<std::pair<std::string, std::vector<std::string>>> commands = {
      {"ops", {}},
      {"gemm", {"--rows-per-expert", "8"}},
      {"step", {"--warmup", "1", "--steps", "1"}},
      {"offload", {"--case", "recompute.granularity=none", "--warmup", "1", "--steps", "1"}}};
  for (const auto& [name, more] : commands) {
    SCOPED_TRACE(name);
    std::filesystem::remove(cache_);
    std::vector<std::string> arguments = {"run.backend=cuda", "run.deterministic=false",
                                          "run.gemm_cache=" + cache_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ASSERT_EQ(ferry(name, arguments), 0) << err_;
    std::ifstream in(cache_);
    ASSERT_TRUE(in);
    EXPECT_FALSE(nlohmann::json::parse(in).at("products").empty());
    std::filesystem::remove(cache_);
    arguments[1] = "run.deterministic=true";
    EXPECT_EQ(ferry(name, arguments), 2);
    EXPECT_THAT(err_, HasSubstr("run.gemm_cache cannot be used: " + cache_ + " does not exist"));
  }
}

TEST_F(BenchCommand, CopiesNeedNoMeasuredProducts) {
  if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(
      ferry("copy", {"run.backend=cuda", "run.deterministic=true", "run.gemm_cache=" + cache_}), 0)
      << err_;
}

}  // namespace
}  // namespace ferry
