#include "app/eval_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "app/trainer.h"
#include "checkpoint/directory.h"
#include "core/device.h"
#include "core/ops/gemm_tuning.h"
#include "tests/app/small_run.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

class EvalCommand : public ::testing::Test {
 protected:
  void train(const std::vector<std::string>& more) {
    std::vector<std::string> overrides = {"run.stop_at_step=4", "checkpoint.every=2"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    ::testing::internal::CaptureStdout();
    const auto runtime = Runtime::start();
    Trainer(testing::small_run(dir_, overrides), *runtime, "ferry train").run();
    ::testing::internal::GetCapturedStdout();
  }

  // The exit code of `ferry eval ARGUMENTS`; what it prints is in out_ and err_.
  int ferry(std::vector<std::string> arguments) {
    CLI::App root{"ferry"};
    int code = -1;
    add_eval_command(root, code);
    arguments.insert(arguments.begin(), "eval");
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    root.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    out_ = ::testing::internal::GetCapturedStdout();
    err_ = ::testing::internal::GetCapturedStderr();
    return code;
  }

  testing::TempDir dir_;
  const std::string run_ = (dir_ / "run").string();
  std::string out_, err_;
};

TEST_F(EvalCommand, GivesTheLossThatTrainingLogged) {
  train({"run.eval_every=2"});
  std::ifstream in(run_ + "/metrics.jsonl");
  std::vector<double> logged;
  for (std::string line; std::getline(in, line);) {
    const auto object = nlohmann::json::parse(line);
    if (object.contains("valid_loss")) logged.push_back(object["valid_loss"]);
  }
  ASSERT_EQ(logged.size(), 2u);
  ASSERT_EQ(ferry({run_, "--json"}), 0) << err_;
  const auto newest = nlohmann::json::parse(out_);
  EXPECT_EQ(newest.at("step"), 4);
  EXPECT_EQ(newest.at("valid_loss"), logged[1]);
  EXPECT_EQ(newest.at("tokens"), 2 * 8 * 16);
  EXPECT_NEAR(newest.at("perplexity"), std::exp(logged[1]), 1e-9);
  const std::string older = run_ + "/ckpt/" + step_directory_name(2);
  ASSERT_EQ(ferry({older, "--json"}), 0) << err_;
  EXPECT_EQ(nlohmann::json::parse(out_).at("valid_loss"), logged[0]);
  ASSERT_EQ(ferry({older, "--batches", "1"}), 0) << err_;
  EXPECT_THAT(out_, ::testing::MatchesRegex(
                        "step 2 \\| valid loss 4\\..... \\| perplexity .* \\| 128 tokens\n"));
}

TEST_F(EvalCommand, WritesTheLogitsOfSoManySamples) {
  train({});
  const std::string file = (dir_ / "logits.npy").string();
  ASSERT_EQ(ferry({run_, "--logits", file, "--samples", "3"}), 0) << err_;  // of micro-batches of 2
  EXPECT_THAT(out_, HasSubstr("logits of 3 samples in " + file));
  EXPECT_EQ(std::filesystem::file_size(file), 128u + 3 * 16 * 64 * sizeof(float));
  EXPECT_EQ(ferry({run_, "--logits", file}), 4);
  EXPECT_THAT(err_, HasSubstr("cannot create " + file));
  const std::string other = (dir_ / "other.npy").string();
  ASSERT_EQ(ferry({run_, "--json", "--logits", other}), 0) << err_;
  EXPECT_EQ(nlohmann::json::parse(out_).at("logits"), other);
  EXPECT_EQ(nlohmann::json::parse(out_).at("logit_samples"), 4);
}

TEST_F(EvalCommand, WhatIsNoCheckpointIsAStorageError) {
  EXPECT_EQ(ferry({dir_.path().string()}), 4);
  EXPECT_THAT(err_, HasSubstr(dir_.path().string() + " holds no checkpoint: name a run directory"));
  train({});
  const auto damage = [&](int64_t step) {
    std::filesystem::resize_file(run_ + "/ckpt/" + step_directory_name(step) + "/shard-00000.h5",
                                 64);
  };
  damage(4);
  EXPECT_EQ(ferry({run_}), 0);
  EXPECT_THAT(out_, HasSubstr("step 2 | valid loss"));
  EXPECT_THAT(err_, HasSubstr("rejected " + run_ + "/ckpt/step-00000004: "));
  EXPECT_EQ(ferry({run_ + "/ckpt"}), 0) << "as ferry ckpt has it";
  damage(2);
  EXPECT_EQ(ferry({run_}), 4);
  EXPECT_THAT(err_, HasSubstr("step-00000004: "));
  EXPECT_THAT(err_, HasSubstr("step-00000002: "));
  EXPECT_THAT(err_, HasSubstr(run_ + " holds no intact checkpoint"));
}

TEST_F(EvalCommand, OverridesAreChecked) {
  train({});
  EXPECT_EQ(ferry({run_, "model.hiden=64"}), 2);
  EXPECT_THAT(err_, HasSubstr("model.hiden"));
}

TEST_F(EvalCommand, TakesMeasuredProductsFromTheFile) {
  if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  train({});
  const std::string cache = (dir_ / "gemm.json").string();
  const std::vector<std::string> arguments = {run_, "run.backend=cuda", "run.gemm_cache=" + cache};
  std::vector<std::string> deterministic = arguments;
  deterministic.push_back("run.deterministic=true");
  EXPECT_EQ(ferry(deterministic), 2);
  EXPECT_THAT(err_, HasSubstr("run.gemm_cache cannot be used: " + cache + " does not exist"));
  std::vector<std::string> measuring = arguments;
  measuring.push_back("run.deterministic=false");
  ASSERT_EQ(ferry(measuring), 0) << err_;
  std::ifstream in(cache);
  ASSERT_TRUE(in);
  EXPECT_FALSE(nlohmann::json::parse(in).at("products").empty());
  EXPECT_EQ(ferry(deterministic), 0) << err_;
  set_gemm_tuning({});
}

TEST_F(EvalCommand, AnotherModelIsAStorageError) {
  train({});
  EXPECT_EQ(ferry({run_, "model.layers=1", "moe.layer_freq=[0]"}), 4);
  EXPECT_THAT(err_, HasSubstr("is of another model"));
}

TEST_F(EvalCommand, MissingDataIsADataError) {
  train({});
  EXPECT_EQ(
      ferry({run_, "data.kind=megatron", "data.train=[x]", "--data", (dir_ / "absent").string()}),
      3);
  EXPECT_THAT(err_, HasSubstr("absent"));
  EXPECT_EQ(ferry({run_, "data.kind=megatron", "data.train=[x]"}), 2);
  EXPECT_THAT(err_, HasSubstr("had no validation data"));
}

}  // namespace
}  // namespace ferry
