#include "app/start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>

#include "app/data_spec.h"
#include "app/state_snapshot.h"
#include "tests/app/small_run.h"
#include "tests/app/training_rank.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::TrainingRank;

// A rank of a job whose ranks are threads.
class ThreadRuntime final : public Runtime {
 public:
  ThreadRuntime(int rank, Control& control) : rank_(rank), control_(control) {}
  int rank() const override { return rank_; }
  int size() const override { return control_.size(); }
  int local_rank() const override { return rank_; }
  int local_size() const override { return size(); }
  std::string host_name() const override { return "here"; }
  Control& control() override { return control_; }
  std::unique_ptr<Control> make_control(const std::string&) override {
    fail(ExitCode::Internal, "not asked for");
  }
  std::unique_ptr<Group> world_group() override { fail(ExitCode::Internal, "not asked for"); }
  std::unique_ptr<Group> world_nccl_group(Device&) override {
    fail(ExitCode::Internal, "not asked for");
  }
  void abort(int exit_code) override { fail(ExitCode::Internal, "aborted with ", exit_code); }

 private:
  int rank_;
  Control& control_;
};

class StartTest : public ::testing::Test {
 protected:
  static std::unique_ptr<const TokenDataset> data(const RunConfig& config, int ranks) {
    return open_dataset(training_data_spec(config, ranks));
  }

  // Begins on two tensor-parallel ranks, and runs `then` on each of them; all ranks must have got
  // the same.
  Start begin(const std::vector<std::string>& more = {},
              const std::function<void(TrainingRank&, Runtime&, const Start&)>& then = nullptr) {
    std::vector<std::string> overrides = {"parallel.tensor=2"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    const RunConfig config = testing::parallel_run(dir_, overrides, 2);
    std::vector<Start> starts(2);
    testing::run_ranks(2, [&](Group& world, Control& control) {
      TrainingRank rank(config, world);
      ThreadRuntime runtime(world.rank(), control);
      const Start start = begin_run(config, runtime, rank.model(), *data(config, 2));
      if (then) then(rank, runtime, start);
      starts[static_cast<size_t>(world.rank())] = start;
    });
    EXPECT_EQ(starts[0].progress.step, starts[1].progress.step);
    EXPECT_EQ(starts[0].progress.samples, starts[1].progress.samples);
    EXPECT_EQ(starts[0].attempt.number, starts[1].attempt.number);
    EXPECT_EQ(starts[0].parent.has_value(), starts[1].parent.has_value());
    return starts[0];
  }

  // Trains a step more and saves it as `step`.
  void begin_and_save(int64_t step, std::optional<uint64_t> other_fingerprint = {}) {
    const RunConfig config = testing::parallel_run(dir_, {"parallel.tensor=2"}, 2);
    const uint64_t fingerprint = other_fingerprint.value_or(data(config, 2)->fingerprint());
    begin({}, [&](TrainingRank& rank, Runtime& runtime, const Start& start) {
      rank.step();
      const StateSnapshot snapshot = StateSnapshot::now(snapshot_source(rank.model()));
      SaveRequest request;
      request.run_dir = run_;
      request.step = step;
      request.attempt = start.attempt.number;
      request.slices = snapshot.slices();
      request.state = to_state({step, 8 * step, 128 * step}, 1, 1e-3, fingerprint);
      request.config = resolved_toml(config);
      request.parent = start.parent;
      save_checkpoint(request, runtime.control());
    });
  }

  std::string error_of(ExitCode code, const std::vector<std::string>& more) {
    try {
      begin(more);
    } catch (const Error& error) {
      EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
      return error.what();
    }
    return "no error";
  }

  // What is said of the storage, whatever these tests run on.
  static std::string notices(const Start& start) {
    std::string text;
    for (const std::string& notice : start.attempt.notices) text += "\n! " + notice;
    return text;
  }
  fs::path checkpoint(int64_t step) const { return run_ / "ckpt" / step_directory_name(step); }
  std::string resume(int64_t step) const {
    return "checkpoint.resume='" + checkpoint(step).string() + "'";
  }

  testing::TempDir dir_;
  const fs::path run_ = dir_ / "run";
};

TEST_F(StartTest, ANewRunBeginsFromScratchInADirectoryOfItsOwn) {
  const Start start = begin();
  EXPECT_EQ(start.description, "from scratch" + notices(start));
  EXPECT_EQ(start.progress.step, 0);
  EXPECT_EQ(start.attempt.number, 1);
  EXPECT_FALSE(start.parent);
  EXPECT_TRUE(fs::is_directory(run_ / "log"));
  EXPECT_EQ(begin().attempt.number, 2) << "nothing was trained: it may begin again";
}

TEST_F(StartTest, GoesOnFromTheNewestCheckpoint) {
  begin_and_save(1);
  begin_and_save(2);
  const Start start = begin();
  EXPECT_EQ(start.progress.step, 2);
  EXPECT_EQ(start.progress.samples, 16);
  EXPECT_EQ(start.progress.tokens, 256);
  EXPECT_EQ(start.attempt.number, 3);
  ASSERT_TRUE(start.parent);
  EXPECT_EQ(start.parent->step, 2);
  EXPECT_EQ(start.parent->root, Checkpoint::open(checkpoint(2)).root());
  EXPECT_EQ(start.parent->run, start.attempt.run);
  EXPECT_TRUE(start.parent_is_here);
  EXPECT_THAT(start.description,
              AllOf(StartsWith(checkpoint(2).string() + " (verified, "), HasSubstr(" MB in ")));
  // Or from the one that is named, in another directory.
  const Start named = begin({resume(1), "run.dir='" + (dir_ / "other").string() + "'"});
  EXPECT_EQ(named.progress.step, 1);
  EXPECT_EQ(named.parent->root, Checkpoint::open(checkpoint(1)).root());
  EXPECT_EQ(named.parent->run, start.attempt.run);
  EXPECT_NE(named.attempt.run, start.attempt.run);
  EXPECT_FALSE(named.parent_is_here);
}

TEST_F(StartTest, LoadsTheModel) {
  testing::Assembly saved, loaded, fresh;
  begin({}, [&](TrainingRank& rank, Runtime&, const Start&) { fresh.add_values(rank); });
  begin_and_save(1);
  begin({}, [&](TrainingRank& rank, Runtime&, const Start&) { loaded.add_values(rank); });
  begin({"parallel.tensor=1", "parallel.pipeline=2"},
        [&](TrainingRank& rank, Runtime&, const Start&) { saved.add_values(rank); });
  EXPECT_NE(loaded.whole(), fresh.whole());
  EXPECT_EQ(loaded.whole(), saved.whole());
}

TEST_F(StartTest, SaysWhatItPassedOverAndRemoved) {
  begin_and_save(1);
  begin_and_save(2);
  fs::resize_file(checkpoint(2) / "shard-00001.h5", 64);
  fs::create_directories(run_ / "ckpt" / temporary_directory_name(3, 2));
  const Start start = begin();
  EXPECT_EQ(start.progress.step, 1);
  EXPECT_THAT(start.description, HasSubstr("\n! " + checkpoint(2).string() + " is not used: "));
  EXPECT_THAT(start.description, HasSubstr("which an earlier start left unfinished"));
  fs::resize_file(checkpoint(1) / "shard-00000.h5", 64);
  EXPECT_THAT(error_of(ExitCode::Storage, {}),
              AllOf(HasSubstr("no checkpoint in " + run_.string() + " can be used"),
                    HasSubstr("step-00000001"), HasSubstr("step-00000002")));
}

TEST_F(StartTest, FreshRenamesTheRunOnce) {
  begin_and_save(1);
  const Start start = begin({"run.fresh=true"});
  EXPECT_EQ(start.progress.step, 0);
  EXPECT_EQ(start.description, "from scratch\n! the earlier run was renamed to " + run_.string() +
                                   ".before-1" + notices(start));
  EXPECT_FALSE(fs::exists(run_.string() + ".before-2")) << "by one rank";
  const std::string inside =
      "checkpoint.resume='" + run_.string() + ".before-1/ckpt/" + step_directory_name(1) + "'";
  EXPECT_EQ(begin({inside, "run.fresh=true"}).progress.step, 1);
}

TEST_F(StartTest, WeightsOnlyBeginsAtStepZero) {
  begin_and_save(1);
  const Start start = begin(
      {resume(1), "checkpoint.weights_only=true", "run.dir='" + (dir_ / "other").string() + "'"});
  EXPECT_EQ(start.progress.step, 0);
  EXPECT_FALSE(start.parent);
  EXPECT_EQ(start.description, "weights of " + checkpoint(1).string() + notices(start));
  EXPECT_THAT(error_of(ExitCode::Usage, {"checkpoint.weights_only=true",
                                         "run.dir='" + (dir_ / "empty").string() + "'"}),
              HasSubstr("has no checkpoint to take weights from"));
}

TEST_F(StartTest, ChangesAreRefusedBeforeAnythingIsTouchedUnlessTheyAreAllowed) {
  begin_and_save(1);
  const std::string message = error_of(ExitCode::Usage, {"run.seed=5", "optimizer.lr=1e-3"});
  EXPECT_THAT(message, AllOf(HasSubstr("run.seed      1234        5"),
                             HasSubstr("optimizer.lr  0.002       0.001"),
                             HasSubstr("checkpoint.allow_changes=[run.seed,optimizer.lr]")));
  EXPECT_TRUE(fs::exists(run_ / "ckpt" / "EPOCH.000001")) << "no other attempt has begun";
  const Start start = begin({"run.seed=5", "optimizer.lr=1e-3",
                             "checkpoint.allow_changes=[run.seed,optimizer]", "parallel.tensor=1"});
  EXPECT_EQ(start.progress.step, 1);
  EXPECT_THAT(start.description,
              AllOf(HasSubstr("! settings that are not those of the checkpoint:"),
                    HasSubstr("optimizer.lr     0.002       0.001  (allowed)"),
                    HasSubstr("parallel.tensor  2           1")));
  EXPECT_EQ(begin({resume(1), "run.seed=5", "checkpoint.weights_only=true",
                   "run.dir='" + (dir_ / "other").string() + "'"})
                .progress.step,
            0)
      << "weights alone go on nowhere";
}

TEST_F(StartTest, OtherDataUnderTheSameNamesAreRefusedUnlessAllowed) {
  begin_and_save(1, 0x123);
  EXPECT_THAT(error_of(ExitCode::Data, {}),
              AllOf(HasSubstr("was trained on other data\n  --> data.train"),
                    HasSubstr("its fingerprint is 0000000000000123, that of "),
                    HasSubstr("checkpoint.allow_changes=[data.train]")));
  EXPECT_THAT(begin({"checkpoint.allow_changes=[data]"}).description,
              HasSubstr("\n! other data (allowed): its fingerprint is 0000000000000123"));
}

TEST_F(StartTest, WhatDoesNotFitIsRefused) {
  begin_and_save(1);
  begin_and_save(2);
  const std::vector<std::string> smaller = {"model.layers=3", "moe.layer_freq=[0,1,1]"};
  EXPECT_THAT(error_of(ExitCode::Usage, smaller),
              AllOf(HasSubstr("step-00000002 was trained with other settings"),
                    HasSubstr("checkpoint.allow_changes=[model.layers,moe.layer_freq]")));
  EXPECT_THAT(
      error_of(ExitCode::Storage, {smaller[0], smaller[1], "checkpoint.allow_changes=[model,moe]"}),
      HasSubstr("is of another model\n  --> model/layers/3/"));
  EXPECT_THAT(error_of(ExitCode::Usage, {resume(1)}), HasSubstr("has a checkpoint of step 2"));
  EXPECT_THAT(error_of(ExitCode::Usage, {resume(1), "run.fresh=true"}),
              HasSubstr("run.fresh would rename the directory that "));
  EXPECT_THAT(error_of(ExitCode::Usage, {"checkpoint.resume=none"}),
              HasSubstr("holds an earlier run"));
}

}  // namespace
}  // namespace ferry
