#include "app/saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "checkpoint/forwarding_file_system.h"
#include "checkpoint/reader.h"
#include "tests/app/small_run.h"
#include "tests/app/training_rank.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TrainingRank;
using Overrides = std::vector<std::string>;

// A rank of a job whose ranks are threads.
class ThreadRuntime final : public Runtime {
 public:
  ThreadRuntime(ThreadWorld& world, int rank) : world_(world), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return world_.size(); }
  int local_rank() const override { return rank_; }
  int local_size() const override { return size(); }
  std::string host_name() const override { return "here"; }
  Control& control() override { return world_.control(rank_); }
  std::unique_ptr<Control> make_control(const std::string& name) override {
    return world_.make_control(rank_, name);
  }
  std::unique_ptr<Group> world_group() override { fail(ExitCode::Internal, "not asked for"); }
  std::unique_ptr<Group> world_nccl_group(Device&) override {
    fail(ExitCode::Internal, "not asked for");
  }
  void abort(int exit_code) override { fail(ExitCode::Internal, "aborted with ", exit_code); }

 private:
  ThreadWorld& world_;
  int rank_;
};

// A disk on which no file can be made while it is full, or only after it is opened. All ranks use
// it.
class Disk final : public ForwardingFileSystem {
 public:
  std::atomic<bool> full = false;
  // While it is set, the making of files waits.
  std::atomic<bool> stuck = false;

  std::unique_ptr<File> create(const Path& path) override {
    while (stuck) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (full) fail(ExitCode::Storage, "cannot create ", path.native(), ": no space left");
    return real_.create(path);
  }
  void sync_directory(const Path&) override {}
};

class SaverTest : public ::testing::Test {
 protected:
  // What a rank trains and saves with.
  struct Rank {
    TrainingRank& rank;
    Saver& saver;
    Progress progress;
    std::vector<double> numbers;  // losses and norms of all steps

    void step() {
      TrainModel& model = rank.model();
      const ParallelModel::Input input = rank.passes();
      std::vector<double> sums{read_total(rank.stream(), model.totals(), "loss"),
                               input.num_loss_tokens, double(saver.busy())};
      sum_over_ranks(sums, rank.groups().world(), rank.stream());
      const double norm = model.gradient_norm(sums[1]);
      saver.before_update();
      model.update(++progress.step, sums[1], norm);
      progress.samples = 8 * progress.step;
      numbers.insert(numbers.end(), {sums[0], norm});
      saver.poll(static_cast<int64_t>(sums[2]));
    }
    void steps(int count) {
      for (int i = 0; i < count; ++i) step();
    }
  };

  // Runs `body` on each rank; the console is in console_, the events in events_.
  std::vector<double> train(const Overrides& overrides, int ranks,
                            const std::function<void(Rank&)>& body) {
    Overrides all = {"run.steps=100", "checkpoint.every=1", "checkpoint.keep=0"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const RunConfig config = testing::small_run(dir_, all, ranks);
    fs::remove_all(run_);
    fs::create_directories(run_ / "log");
    std::vector<double> numbers;
    ThreadWorld world(ranks, 60);
    std::vector<std::string> errors(static_cast<size_t>(ranks));
    ::testing::internal::CaptureStdout();
    std::vector<std::thread> threads;
    for (int i = 0; i < ranks; ++i)
      threads.emplace_back([&, i] {
        try {
          ThreadRuntime runtime(world, i);
          const auto group = world.group(i);
          TrainingRank rank(config, *group);
          Console console(i == 0, run_);
          JsonLines events;
          if (i == 0) events = JsonLines(run_ / "events.jsonl");
          Start start;
          start.attempt = begin_attempt(run_, runtime.control());
          Saver saver({config, runtime, rank.model(), console, events, disk_}, start, "layout", 7);
          Rank own{rank, saver, {}, {}};
          body(own);
          saver.finish();
          if (i == 0) numbers = own.numbers;
        } catch (const std::exception& error) {
          errors[static_cast<size_t>(i)] = error.what();
          world.fail_all(error.what());
        }
      });
    for (std::thread& thread : threads) thread.join();
    console_ = ::testing::internal::GetCapturedStdout();
    EXPECT_THAT(errors, ::testing::Each("")) << console_;
    events_.clear();
    std::ifstream in(run_ / "events.jsonl");
    for (std::string line; std::getline(in, line);) events_.push_back(nlohmann::json::parse(line));
    return numbers;
  }

  std::string root(int64_t step) const {
    return Checkpoint::open(run_ / "ckpt" / step_directory_name(step)).root();
  }
  bool is_saved(int64_t step) const {
    return fs::exists(run_ / "ckpt" / step_directory_name(step));
  }
  std::vector<std::string> event_names() const {
    std::vector<std::string> names;
    for (const auto& line : events_)
      names.push_back(concat(line.at("event").get<std::string>(), ' ', line.at("step")));
    return names;
  }

  testing::TempDir dir_;
  const fs::path run_ = dir_ / "run";
  Disk disk_;
  std::string console_;
  std::vector<nlohmann::json> events_;
};

// Numbers of training and all checkpoints are the same with saves beside training, with saves that
// stop it, and (the numbers) without any.
TEST_F(SaverTest, SavesBesideTrainingChangeNothing) {
  const Overrides host = {"optimizer.offload.enabled=true", "optimizer.offload.threads=2"};
  const auto offload = [&](const std::string& fraction, const std::string& overlap) {
    Overrides all = host;
    all.insert(all.end(), {"optimizer.offload.fraction=" + fraction,
                           "optimizer.offload.overlap_d2h_h2d=" + overlap});
    return all;
  };
  struct Case {
    Overrides overrides;
    int ranks;
  };
  for (const auto& [overrides, ranks] :
       std::vector<Case>{{{}, 1},
                         {{"model.precision=bf16"}, 1},
                         {offload("1", "false"), 1},
                         {offload("0.5", "true"), 1},
                         {{"parallel.expert=2", "optimizer.distributed=false"}, 2},
                         {{"optimizer.distributed=true", "optimizer.overlap_param_gather=true"}, 2},
                         {offload("1", "true"), 2}}) {
    SCOPED_TRACE(::testing::PrintToString(overrides));
    const auto saving = [&](const Overrides& more, bool saves) {
      Overrides all = overrides;
      all.insert(all.end(), more.begin(), more.end());
      return train(all, ranks, [&](Rank& rank) {
        for (int i = 0; i < 5; ++i) {
          rank.step();
          if (saves) rank.saver.begin(rank.progress, "test");
        }
      });
    };
    const std::vector<double> without = saving({}, false);
    EXPECT_EQ(saving({"checkpoint.async=false"}, true), without);
    std::vector<std::string> roots;
    for (int64_t step = 1; step <= 5; ++step) roots.push_back(root(step));
    EXPECT_EQ(saving({}, true), without);
    for (int64_t step = 1; step <= 5; ++step)
      EXPECT_EQ(root(step), roots[static_cast<size_t>(step) - 1]) << step;
    EXPECT_TRUE(events_.back().at("beside_training"));
  }
}

// A save that is in flight over several steps holds the state of its own step.
TEST_F(SaverTest, ASaveOverSeveralStepsHoldsItsStep) {
  for (const Overrides& overrides :
       {Overrides{"optimizer.offload.enabled=true", "optimizer.offload.fraction=0.5",
                  "optimizer.offload.threads=2"},
        Overrides{}}) {
    const auto straight = [&](Rank& rank) {
      rank.steps(2);
      rank.saver.save(rank.progress, "test");
    };
    train(overrides, 2, straight);
    const std::string wanted = root(2);
    disk_.stuck = true;
    train(overrides, 2, [&](Rank& rank) {
      rank.steps(2);
      rank.saver.begin(rank.progress, "test");
      rank.steps(3);
      EXPECT_TRUE(rank.saver.busy());
      EXPECT_EQ(rank.saver.saved_step(), -1) << "nothing is claimed before it is acknowledged";
      if (rank.rank.groups().world().rank() == 0) disk_.stuck = false;
      rank.saver.finish();
      EXPECT_EQ(rank.saver.saved_step(), 2);
    });
    EXPECT_EQ(root(2), wanted);
    EXPECT_THAT(event_names(), ElementsAre("saved 2"));
    for (const char* key : {"stall_s", "copy_s", "write_s", "sync_s", "verify_s", "seconds"})
      EXPECT_GE(events_[0].at(key).get<double>(), 0) << key;
    EXPECT_GE(events_[0].at("seconds"), events_[0].at("stall_s")) << "three steps went by";
    EXPECT_EQ(events_[0].contains("copied_on_write_bytes"), !overrides.empty());
  }
}

TEST_F(SaverTest, OneAfterTheOtherOrSkipped) {
  // The disk is stuck until the second save is due, and for as long as that is skipped.
  disk_.stuck = true;
  train({"checkpoint.when_busy=skip"}, 2, [&](Rank& rank) {
    rank.step();
    rank.saver.begin(rank.progress, "test");
    rank.step();
    rank.saver.begin(rank.progress, "test");
    EXPECT_TRUE(rank.saver.busy());
    rank.step();  // both ranks are here
    if (rank.rank.groups().world().rank() == 0) disk_.stuck = false;
    rank.saver.finish();
    rank.saver.begin(rank.progress, "test");
  });
  EXPECT_THAT(event_names(), ElementsAre("save_skipped 2", "saved 1", "saved 3"));
  EXPECT_EQ(events_[0].at("in_flight"), 1);
  EXPECT_THAT(console_, HasSubstr("! no checkpoint of step 2: that of step 1 is still being"));
  EXPECT_FALSE(is_saved(2));

  disk_.stuck = true;
  train({"checkpoint.when_busy=wait"}, 2, [&](Rank& rank) {
    rank.step();
    rank.saver.begin(rank.progress, "test");
    rank.step();
    if (rank.rank.groups().world().rank() == 0) disk_.stuck = false;
    rank.saver.begin(rank.progress, "test");
    EXPECT_EQ(rank.saver.saved_step(), 1);
    EXPECT_GT(rank.saver.take_stall_seconds().value(), 0);
  });
  EXPECT_THAT(event_names(), ElementsAre("saved 1", "save_waited 2", "saved 2"));
  EXPECT_GT(events_[1].at("seconds"), 0);
  EXPECT_THAT(console_, HasSubstr("until the checkpoint of step 1 was written"));
  EXPECT_TRUE(is_saved(2));
}

// Training survives a disk that is full, and the next save is good; the last one must be.
TEST_F(SaverTest, AFailedSaveIsToldAndTheNextIsTried) {
  for (const char* async : {"true", "false"}) {
    SCOPED_TRACE(async);
    train({concat("checkpoint.async=", async)}, 2, [&](Rank& rank) {
      const bool first = rank.rank.groups().world().rank() == 0;
      rank.step();
      rank.saver.begin(rank.progress, "test");
      rank.saver.finish();
      rank.step();
      if (first) disk_.full = true;
      rank.saver.begin(rank.progress, "test");
      rank.saver.finish();
      EXPECT_EQ(rank.saver.saved_step(), 1);
      try {
        rank.saver.save(rank.progress, "end");
        ADD_FAILURE() << "the last save failed without an error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::Storage);
        EXPECT_THAT(error.what(), HasSubstr("no space left"));
      }
      rank.step();
      if (first) disk_.full = false;
      rank.step();
      rank.saver.begin(rank.progress, "test");
    });
    EXPECT_THAT(event_names(), ElementsAre("saved 1", "save_failed 2", "saved 4"));
    EXPECT_THAT(events_[1].at("error").get<std::string>(), HasSubstr("no space left"));
    EXPECT_EQ(events_[1].at("exit_code"), 4);
    EXPECT_THAT(console_, HasSubstr("! CHECKPOINT OF STEP 2 FAILED: "));
    EXPECT_THAT(console_, HasSubstr("the checkpoint of step 1 is good"));
    EXPECT_EQ(Checkpoint::open(run_ / "ckpt" / step_directory_name(4)).manifest().parent->step, 1);
  }
}

TEST_F(SaverTest, AFailureBeforeTheFirstCheckpointSaysThatThereIsNone) {
  disk_.full = true;
  train({}, 1, [&](Rank& rank) {
    rank.step();
    rank.saver.begin(rank.progress, "test");
    rank.saver.finish();
    disk_.full = false;
  });
  EXPECT_THAT(console_, HasSubstr("there is no checkpoint yet"));
}

// A start that was thought dead must not go on beside the one that took its place.
TEST_F(SaverTest, AStartThatWasReplacedEnds) {
  for (const char* async : {"true", "false"})
    train({concat("checkpoint.async=", async)}, 1, [&](Rank& rank) {
      rank.step();
      SoloControl control;
      begin_attempt(run_, control);
      try {
        rank.saver.begin(rank.progress, "test");
        rank.saver.finish();
        ADD_FAILURE() << "it goes on";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::Storage);
        EXPECT_THAT(error.what(), HasSubstr("attempt 2 of this run has started since"));
      }
    });
}

TEST_F(SaverTest, WarnsOnceIfTheLastSaveMayNotFit) {
  ASSERT_EQ(setenv("FERRY_GRACE_S", "0", 1), 0);
  train({}, 1, [&](Rank& rank) {
    for (int i = 0; i < 2; ++i) {
      rank.step();
      rank.saver.begin(rank.progress, "test", 0.0);
    }
  });
  ASSERT_EQ(unsetenv("FERRY_GRACE_S"), 0);
  const size_t first = console_.find("(FERRY_GRACE_S)");
  EXPECT_NE(first, std::string::npos) << console_;
  EXPECT_EQ(console_.find("(FERRY_GRACE_S)", first + 1), std::string::npos);
  EXPECT_THAT(console_, HasSubstr("0.0 s are left of run.time_limit_minutes"));
}

// The limit of debug.slow_writer_mb_s holds a save in flight for some steps.
TEST_F(SaverTest, ASlowDiskDoesNotStopTraining) {
  train({"debug.slow_writer_mb_s=1", "checkpoint.copy_gib=1e-6", "optimizer.offload.enabled=true"},
        1, [&](Rank& rank) {
          rank.step();
          rank.saver.begin(rank.progress, "test");
          EXPECT_TRUE(rank.saver.busy());
          rank.steps(3);
        });
  EXPECT_THAT(event_names(), ElementsAre("saved 1"));
  EXPECT_GE(events_[0].at("write_s"), 1e-6 * events_[0].at("bytes").get<double>() / 2);
}

}  // namespace
}  // namespace ferry
