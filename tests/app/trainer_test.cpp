#include "app/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/directory.h"
#include "checkpoint/reader.h"
#include "core/check.h"
#include "tests/app/small_run.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::small_run;

class TrainerTest : public ::testing::Test {
 protected:
  // Trains in this process; what it printed is in printed_.
  ExitCode train(const std::vector<std::string>& overrides = {}) {
    return train_with(small_run(dir_, overrides));
  }
  ExitCode train_with(const RunConfig& config) {
    ::testing::internal::CaptureStdout();
    ExitCode code = ExitCode::Internal;
    try {
      const auto runtime = Runtime::start();
      Trainer trainer(config, *runtime, "ferry train small.toml");
      code = trainer.run();
    } catch (...) {
      printed_ = ::testing::internal::GetCapturedStdout();
      throw;
    }
    printed_ = ::testing::internal::GetCapturedStdout();
    return code;
  }

  std::string error_of(ExitCode code, const std::vector<std::string>& overrides) {
    try {
      train(overrides);
    } catch (const Error& error) {
      EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
      return error.what();
    }
    return "no error";
  }

  std::vector<nlohmann::json> lines(const std::string& name) const {
    std::ifstream in(run_ / name);
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(in, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }

  // What must not depend on where a run was stopped: step, samples, loss, rate, norm of each step.
  std::vector<std::string> course() const {
    std::vector<std::string> all;
    for (const nlohmann::json& line : lines("metrics.jsonl"))
      all.push_back(concat(line.at("step"), ' ', line.at("samples"), ' ', line.at("loss"), ' ',
                           line.at("lr"), ' ', line.at("grad_norm"), ' ', line.at("aux_loss")));
    return all;
  }

  std::vector<std::string> events() const {
    std::vector<std::string> names;
    for (const nlohmann::json& line : lines("events.jsonl")) names.push_back(line.at("event"));
    return names;
  }

  std::string root(int64_t step) const {
    return Checkpoint::open(run_ / "ckpt" / step_directory_name(step)).root();
  }

  void move_run_to(const std::string& name) { fs::rename(run_, dir_ / name); }

  testing::TempDir dir_;
  const fs::path run_ = dir_ / "run";
  std::string printed_;
};

TEST_F(TrainerTest, ARunLeavesWhatTheManualSays) {
  EXPECT_EQ(train({"run.eval_every=3"}), ExitCode::Done);
  for (const char* name : {"resolved.toml", "command.txt", "env.json", "grid.txt", "log/run.log",
                           "metrics.jsonl", "events.jsonl", "LATEST"})
    EXPECT_TRUE(fs::is_regular_file(run_ / name)) << name;
  const auto metrics = lines("metrics.jsonl");
  ASSERT_EQ(metrics.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(metrics[i].at("step"), i + 1);
    EXPECT_EQ(metrics[i].at("samples"), 8 * (i + 1));
    EXPECT_EQ(metrics[i].at("tokens"), 8 * 16 * (i + 1));
    EXPECT_EQ(metrics[i].contains("valid_loss"), i == 2 || i == 5);
    int64_t routed = 0;
    ASSERT_EQ(metrics[i].at("expert_tokens").size(), 1u) << "one layer has experts";
    for (const int64_t count : metrics[i]["expert_tokens"][0]) routed += count;
    EXPECT_EQ(routed, 8 * 16 * 2) << "each token goes to two experts";
    EXPECT_GE(metrics[i].at("aux_loss").get<double>(), 0.99) << "1 is perfect balance";
    EXPECT_GT(metrics[i].at("z_loss").get<double>(), 0);
  }
  EXPECT_THAT(events(), ElementsAre("start", "evaluation", "evaluation", "saved", "done"));
  EXPECT_THAT(printed_, HasSubstr("resume    from scratch"));
  EXPECT_THAT(printed_, HasSubstr("valid loss "));
  EXPECT_THAT(printed_, HasSubstr("done at step 6 of 6 | "));
}

TEST_F(TrainerTest, StoppedAndResumedIsStraight) {
  EXPECT_EQ(train(), ExitCode::Done);
  const std::vector<std::string> straight = course();
  const std::string wanted = root(6);
  move_run_to("straight");

  EXPECT_EQ(train({"run.stop_at_step=2"}), ExitCode::Done);
  EXPECT_EQ(course().size(), 2u);
  EXPECT_EQ(train(), ExitCode::Done);
  EXPECT_THAT(printed_, HasSubstr("step-00000002 (verified, "));
  EXPECT_EQ(course(), straight);
  EXPECT_EQ(root(6), wanted);
  EXPECT_THAT(events(), ElementsAre("start", "saved", "done", "start", "saved", "done"));

  EXPECT_EQ(train(), ExitCode::Done);
  EXPECT_THAT(printed_, HasSubstr("nothing to do: step 6 of 6 is done"));
}

TEST_F(TrainerTest, DebugMemoryPoisonChangesNothing) {
  EXPECT_EQ(train(), ExitCode::Done);
  const std::string wanted = root(6);
  move_run_to("clean");
  EXPECT_EQ(train({"debug.poison_memory=true"}), ExitCode::Done);
  EXPECT_EQ(root(6), wanted);
}

TEST_F(TrainerTest, MetricsOfStepsThatAreDoneAgainMoveAside) {
  EXPECT_EQ(train({"checkpoint.every=2", "run.stop_at_step=5", "checkpoint.save_at_exit=false"}),
            ExitCode::Done);
  EXPECT_FALSE(fs::exists(run_ / "ckpt" / step_directory_name(5)));
  EXPECT_EQ(train(), ExitCode::Done);
  EXPECT_THAT(printed_, HasSubstr("step-00000004 (verified"));
  EXPECT_EQ(course().size(), 6u);
  ASSERT_EQ(lines("metrics.jsonl.1").size(), 1u);
  EXPECT_EQ(lines("metrics.jsonl.1")[0].at("step"), 5);
}

TEST_F(TrainerTest, AStopRequestSavesAndSaysSo) {
  fs::create_directories(run_);
  std::ofstream(run_ / "STOP") << "";
  // Even where a run's end does not save: the exit code promises it.
  EXPECT_EQ(train({"checkpoint.save_at_exit=false"}), ExitCode::Stopped);
  EXPECT_FALSE(fs::exists(run_ / "STOP"));
  EXPECT_THAT(printed_, HasSubstr("stopped at step 1 of 6"));
  EXPECT_THAT(events(), ElementsAre("start", "saved", "stopped"));
  EXPECT_EQ(train({"run.time_limit_minutes=1e-6"}), ExitCode::Stopped);
  EXPECT_EQ(lines("metrics.jsonl").size(), 2u);
  EXPECT_EQ(train(), ExitCode::Done);
}

TEST_F(TrainerTest, AStopAtTheLastStepIsTheEnd) {
  fs::create_directories(run_);
  std::ofstream(run_ / "STOP") << "";
  EXPECT_EQ(train({"run.stop_at_step=1"}), ExitCode::Done);
}

// A slow disk holds saves in flight while training goes on; what they hold is what a save that
// stops training holds.
TEST_F(TrainerTest, SavesBesideTrainingAreThoseOfTheirSteps) {
  const std::vector<std::string> every = {"checkpoint.every=2", "checkpoint.keep=0"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), every.begin(), every.end());
    return more;
  };
  EXPECT_EQ(train(with({"checkpoint.async=false"})), ExitCode::Done);
  const std::vector<std::string> wanted_course = course();
  const std::vector<std::string> wanted = {root(2), root(4), root(6)};
  for (const auto& event : lines("events.jsonl"))
    if (event.at("event") == "saved") {
      EXPECT_FALSE(event.at("beside_training"));
      EXPECT_GT(event.at("stall_s"), 0);
    }
  move_run_to("blocking");
  for (const char* when_busy : {"wait", "skip"}) {
    EXPECT_EQ(train(with({"debug.slow_writer_mb_s=5", concat("checkpoint.when_busy=", when_busy)})),
              ExitCode::Done);
    EXPECT_EQ(course(), wanted_course);
    EXPECT_EQ(root(2), wanted[0]);
    EXPECT_EQ(root(6), wanted[2]);
    if (when_busy == std::string("wait")) {
      EXPECT_EQ(root(4), wanted[1]);
    }
    bool stalled = false;
    for (const auto& line : lines("metrics.jsonl"))
      stalled |= line.at("exposed_s").contains("checkpoint");
    EXPECT_TRUE(stalled);
    EXPECT_EQ(events().back(), "done");
    move_run_to(when_busy);
  }
}

// The end of a run waits for the save in flight, also where it ends with an error.
TEST_F(TrainerTest, ASaveInFlightIsDoneWhenARunEnds) {
  const std::vector<std::string> slow = {"checkpoint.every=3", "debug.slow_writer_mb_s=5"};
  auto overrides = slow;
  overrides.emplace_back("debug.nonfinite_at_step=4");
  EXPECT_THAT(error_of(ExitCode::Numerical, overrides),
              HasSubstr("the checkpoint of step 3 is good"));
  EXPECT_THAT(events(), ElementsAre("start", "saved", "nonfinite"));
  move_run_to("nonfinite");
  overrides = slow;
  overrides.insert(overrides.end(), {"debug.throw_at.rank=0", "debug.throw_at.step=4"});
  error_of(ExitCode::Internal, overrides);
  EXPECT_EQ(Checkpoint::open(run_ / "ckpt" / step_directory_name(3)).step(), 3);
}

TEST_F(TrainerTest, ASaveRequestSavesAndGoesOn) {
  fs::create_directories(run_);
  std::ofstream(run_ / "SAVE") << "";
  EXPECT_EQ(train(), ExitCode::Done);
  EXPECT_TRUE(fs::exists(run_ / "ckpt" / step_directory_name(1)));
  EXPECT_TRUE(fs::exists(run_ / "ckpt" / step_directory_name(6)));
}

TEST_F(TrainerTest, NonfiniteNumbersStopBeforeTheUpdate) {
  const std::string text =
      error_of(ExitCode::Numerical, {"debug.nonfinite_at_step=4", "checkpoint.every=3"});
  EXPECT_THAT(text, HasSubstr("non-finite numbers at step 4"));
  EXPECT_THAT(text, HasSubstr("--> samples 24 to 31"));
  EXPECT_THAT(text, HasSubstr("the checkpoint of step 3 is good"));
  const auto metrics = lines("metrics.jsonl");
  ASSERT_EQ(metrics.size(), 4u);
  EXPECT_EQ(metrics[3].at("nonfinite"), 1);
  EXPECT_TRUE(metrics[3].at("grad_norm").is_null());
  EXPECT_EQ(events().back(), "nonfinite");
  EXPECT_EQ(train(), ExitCode::Done);
  EXPECT_EQ(lines("metrics.jsonl").size(), 6u);
}

TEST_F(TrainerTest, AThrowOnPurposeIsAnInternalError) {
  EXPECT_THAT(error_of(ExitCode::Internal, {"debug.throw_at.rank=0", "debug.throw_at.step=2"}),
              HasSubstr("debug.throw_at: rank 0 at step 2"));
  std::ifstream log(run_ / "log" / "rank-0000.log");
  const std::string text{std::istreambuf_iterator<char>(log), std::istreambuf_iterator<char>()};
  EXPECT_THAT(text, HasSubstr("debug.throw_at: rank 0 at step 2"));
}

TEST_F(TrainerTest, NeverStartsAnewSilently) {
  EXPECT_EQ(train({"run.stop_at_step=2", "checkpoint.save_at_exit=false"}), ExitCode::Done);
  EXPECT_THAT(error_of(ExitCode::Usage, {}), HasSubstr("holds an earlier run"));
  EXPECT_EQ(lines("metrics.jsonl").size(), 2u);
  EXPECT_EQ(train({"run.fresh=true"}), ExitCode::Done);
  EXPECT_THAT(printed_, HasSubstr("! the earlier run was renamed to " + run_.string()));
  EXPECT_TRUE(fs::exists(run_.string() + ".before-1/metrics.jsonl"));
  EXPECT_THAT(error_of(ExitCode::Usage, {"checkpoint.resume=none"}),
              HasSubstr("holds an earlier run"));
}

TEST_F(TrainerTest, DamagedCheckpointsAreNoFreshStart) {
  EXPECT_EQ(train({"run.stop_at_step=2"}), ExitCode::Done);
  fs::remove(run_ / "ckpt" / step_directory_name(2) / "MANIFEST.json");
  const std::string text = error_of(ExitCode::Storage, {});
  EXPECT_THAT(text, HasSubstr("no checkpoint in " + run_.string() + " can be used"));
  EXPECT_THAT(text, HasSubstr("step-00000002"));
}

TEST_F(TrainerTest, OlderCheckpointsStandInForDamagedOnes) {
  EXPECT_EQ(train({"checkpoint.every=2"}), ExitCode::Done);
  fs::resize_file(run_ / "ckpt" / step_directory_name(6) / "shard-00000.h5", 100);
  EXPECT_EQ(train(), ExitCode::Done);
  EXPECT_THAT(printed_, HasSubstr("step-00000006 is not used: "));
  EXPECT_THAT(printed_, HasSubstr("step-00000004 (verified"));
}

TEST_F(TrainerTest, OtherDataAreRefused) {
  EXPECT_EQ(train({"run.stop_at_step=2"}), ExitCode::Done);
  EXPECT_THAT(error_of(ExitCode::Usage, {"run.seed=5"}),
              HasSubstr("was trained with other settings"));
}

TEST_F(TrainerTest, AnotherModelIsRefused) {
  EXPECT_EQ(train({"run.stop_at_step=2"}), ExitCode::Done);
  EXPECT_THAT(error_of(ExitCode::Storage, {"model.layers=1", "moe.layer_freq=[0]",
                                           "checkpoint.allow_changes=[model,moe]"}),
              HasSubstr("is of another model"));
}

TEST_F(TrainerTest, WeightsOnlyStartsAtStepZeroElsewhere) {
  EXPECT_EQ(train({"run.stop_at_step=2"}), ExitCode::Done);
  move_run_to("first");
  const std::string checkpoint = (dir_ / "first" / "ckpt" / step_directory_name(2)).string();
  const std::string resume = "checkpoint.resume='" + checkpoint + "'";
  EXPECT_EQ(train({resume, "checkpoint.weights_only=true"}), ExitCode::Done);
  EXPECT_THAT(printed_, HasSubstr("resume    weights of " + checkpoint));
  EXPECT_EQ(lines("metrics.jsonl").size(), 6u);
  // And a checkpoint named by its path continues in a directory of its own.
  move_run_to("second");
  EXPECT_EQ(train({resume}), ExitCode::Done);
  EXPECT_EQ(lines("metrics.jsonl").front().at("step"), 3);
}

TEST_F(TrainerTest, ABranchAmongLaterCheckpointsIsRefused) {
  EXPECT_EQ(train({"checkpoint.every=2"}), ExitCode::Done);
  const std::string resume =
      "checkpoint.resume='" + (run_ / "ckpt" / step_directory_name(2)).string() + "'";
  EXPECT_THAT(error_of(ExitCode::Usage, {resume}), HasSubstr("has a checkpoint of step 6"));
  EXPECT_THAT(error_of(ExitCode::Usage, {resume, "checkpoint.weights_only=true"}),
              HasSubstr("this start begins at step 0"));
  EXPECT_THAT(error_of(ExitCode::Usage, {resume, "run.fresh=true"}),
              HasSubstr("run.fresh would rename the directory"));
  EXPECT_EQ(lines("metrics.jsonl").size(), 6u);
}

TEST_F(TrainerTest, WeightsOfNoCheckpointAreRefused) {
  EXPECT_THAT(error_of(ExitCode::Usage, {"checkpoint.weights_only=true"}),
              HasSubstr("has no checkpoint to take weights from"));
}

TEST_F(TrainerTest, EveryPrecisionOfTheCpuTrainsAndResumes) {
  for (const std::string precision : {"bf16", "fp64"}) {
    const std::string key = "model.precision=" + precision;
    EXPECT_EQ(train({key}), ExitCode::Done);
    const std::string wanted = root(6);
    move_run_to(precision);
    EXPECT_EQ(train({key, "run.stop_at_step=3"}), ExitCode::Done);
    EXPECT_EQ(train({key}), ExitCode::Done);
    EXPECT_EQ(root(6), wanted) << precision;
    move_run_to(precision + "-resumed");
  }
}

TEST_F(TrainerTest, StepZeroCanBeSaved) {
  EXPECT_EQ(train({"debug.save_step_0=true", "run.stop_at_step=1"}), ExitCode::Done);
  EXPECT_TRUE(fs::exists(run_ / "ckpt" / step_directory_name(0)));
}

}  // namespace
}  // namespace ferry
