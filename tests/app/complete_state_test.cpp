// Everything that a run changes and goes on from is in its checkpoints: one that is started anew
// after each of its steps is, bit for bit, the one that never stopped.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "app/trainer.h"
#include "checkpoint/directory.h"
#include "checkpoint/reader.h"
#include "tests/app/small_run.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSteps = 20;

// With all that could have a memory: dropout, clipping (the limit is below the norm), both losses
// of the router, a rate that rises and falls, four micro-batches a step, moments.
std::vector<std::string> settings() {
  return {"run.steps=20",
          "model.hidden_dropout=0.1",
          "model.attention_dropout=0.1",
          "moe.router.aux_coeff=0.02",
          "moe.router.z_coeff=0.001",
          "optimizer.clip_norm=0.5",
          "optimizer.warmup_steps=6",
          "optimizer.weight_decay=0.1",
          "checkpoint.every=1",
          "checkpoint.keep=0",
          "checkpoint.verify_after_save=false",
          "debug.log_samples=true"};
}

class CompleteState : public ::testing::Test {
 protected:
  void train(const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> overrides = settings();
    overrides.push_back("run.dir='" + (dir_ / name).string() + "'");
    overrides.insert(overrides.end(), more.begin(), more.end());
    ::testing::internal::CaptureStdout();
    const auto runtime = Runtime::start();
    Trainer trainer(testing::small_run(dir_, overrides), *runtime, "ferry train small.toml");
    EXPECT_EQ(trainer.run(), ExitCode::Done);
    ::testing::internal::GetCapturedStdout();
  }

  std::vector<nlohmann::json> lines(const std::string& file) const {
    std::ifstream in(dir_ / file);
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(in, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }

  // The numbers of each step as they are printed, with all digits.
  std::vector<std::string> course(const std::string& name) const {
    std::vector<std::string> all;
    for (const nlohmann::json& line : lines(name + "/metrics.jsonl")) {
      std::string text;
      for (const char* key : {"step", "samples", "tokens", "loss", "lr", "grad_norm", "aux_loss",
                              "z_loss", "expert_tokens"})
        text += line.at(key).dump() + " ";
      all.push_back(text);
    }
    return all;
  }

  // Samples in the order of training, without those of steps that did not become part of the run.
  std::vector<nlohmann::json> samples(const std::string& name) const {
    std::map<int64_t, nlohmann::json> used;  // by first sample
    for (const nlohmann::json& line : lines(name + "/log/samples-0000.jsonl")) {
      if (line.contains("from"))
        used.erase(used.lower_bound(line["from"].get<int64_t>()), used.end());
      else
        used[line.at("samples").at(0).get<int64_t>()] = line;
    }
    std::vector<nlohmann::json> all;
    for (const auto& [first, line] : used) all.push_back(line);
    return all;
  }

  std::string root(const std::string& name, int64_t step) const {
    return Checkpoint::open(dir_ / name / "ckpt" / step_directory_name(step)).root();
  }

  testing::TempDir dir_;
};

TEST_F(CompleteState, ARestartAfterEveryStepChangesNoBit) {
  train("straight", {});
  for (int64_t step = 1; step <= kSteps; ++step)
    train("restarted", {concat("run.stop_at_step=", step)});
  EXPECT_EQ(course("straight").size(), static_cast<size_t>(kSteps));
  EXPECT_EQ(course("restarted"), course("straight"));
  EXPECT_EQ(samples("straight").size(), static_cast<size_t>(4 * kSteps));
  EXPECT_EQ(samples("restarted"), samples("straight"));
  for (int64_t step = 1; step <= kSteps; ++step)
    EXPECT_EQ(root("restarted", step), root("straight", step)) << step;
}

TEST_F(CompleteState, StepsThatAreMadeAgainUseTheSameSamples) {
  const std::vector<std::string> seldom = {"checkpoint.every=5"};
  train("straight", seldom);
  // Ends without a save, as if it had been killed, two steps after the last one.
  for (const int64_t step : {7, 12, 17})
    train("again", {seldom[0], "checkpoint.save_at_exit=false", concat("run.stop_at_step=", step)});
  train("again", seldom);
  EXPECT_EQ(samples("again"), samples("straight"));
  EXPECT_EQ(course("again"), course("straight"));
  EXPECT_EQ(root("again", kSteps), root("straight", kSteps));
}

TEST_F(CompleteState, ARunThatGoesOnElsewhereSavesWithoutAStep) {
  train("first", {"run.stop_at_step=3"});
  const fs::path saved = dir_ / "first" / "ckpt" / step_directory_name(3);
  train("second", {"run.stop_at_step=3", "checkpoint.resume='" + saved.string() + "'"});
  EXPECT_EQ(root("second", 3), root("first", 3));
  const Manifest first = Checkpoint::open(saved).manifest();
  const Manifest second =
      Checkpoint::open(dir_ / "second" / "ckpt" / step_directory_name(3)).manifest();
  EXPECT_NE(second.run, first.run) << "it is a run of its own";
  ASSERT_TRUE(second.parent);
  EXPECT_EQ(second.parent->run, first.run);
  EXPECT_EQ(second.parent->root, root("first", 3));
  // But one that goes on where it was has saved that step already.
  const auto before = fs::last_write_time(saved / "MANIFEST.json");
  train("first", {"run.stop_at_step=3"});
  EXPECT_EQ(fs::last_write_time(saved / "MANIFEST.json"), before);
  EXPECT_EQ(Checkpoint::open(saved).manifest().attempt, 1);
}

}  // namespace
}  // namespace ferry
