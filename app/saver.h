#pragma once

// The checkpoints of a run: when one is written, beside training or while it stands still, what is
// said of it, and what a failure means. docs/checkpointing.md is the page for users.
//
// At most one save is in flight. It counts only when all ranks have agreed, at the end of a step,
// that it is acknowledged: until then nothing says that it is there. A save that fails is told
// loudly and training goes on, but at the end of a run, which promises one. A lost rank, or another
// start that took over the run directory, ends the run.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "app/background_save.h"
#include "app/console.h"
#include "app/guarded_snapshot.h"
#include "app/metrics.h"
#include "app/start.h"
#include "app/train_model.h"
#include "checkpoint/slow_file_system.h"
#include "checkpoint/writer.h"
#include "core/comm/runtime.h"

namespace ferry {

class Saver {
 public:
  /// What a saver works with; all outlive it.
  struct Run {
    const RunConfig& config;
    Runtime& runtime;
    TrainModel& model;
    Console& console;
    JsonLines& events;  // written by rank 0
    FileSystem& file_system;
  };
  /// `layout` and the fingerprint of the data are stored. With checkpoint.async and
  /// checkpoint.every, reserves the memory that a save beside training needs:
  /// Error(ExitCode::Resource). Collective.
  Saver(const Run& run, const Start& start, const std::string& layout, uint64_t data_fingerprint);

  /// Saves the state after `progress.step`, beside training if the configuration has it, and
  /// survives a failure. Between steps; collective. `left_s`: of the run's time limit.
  void begin(const Progress& progress, const std::string& why,
             std::optional<double> left_s = std::nullopt);
  /// Saves it now. Throws the error of a save that fails.
  void save(const Progress& progress, const std::string& why);

  /// Right before each update of the model.
  void before_update() {
    if (snapshot_) snapshot_->wait_before_update();
  }
  /// True while this rank has work to do for a save in flight.
  bool busy() const { return background_ && background_->busy(); }
  /// At the end of each step: `busy_ranks` have said in it that they are busy(). Takes the outcome
  /// of a save that all have ended. Collective.
  void poll(int64_t busy_ranks);
  /// Waits for the save in flight, if there is one. Collective.
  void finish();

  /// Of the newest checkpoint in the run directory that is acknowledged; -1: none.
  int64_t saved_step() const { return saved_step_; }
  std::string saved_text() const;  // "the checkpoint of step 3 is good"
  /// Seconds that training stood still for saves since the last call; none if there was nothing to
  /// wait for.
  std::optional<double> take_stall_seconds();

 private:
  // A save that was begun.
  struct Pending {
    Progress progress;
    std::string why;
    bool beside_training = false;
    double stall_seconds = 0;
    int64_t copied_on_write = 0;
    std::optional<double> left_s;
  };

  bool main_rank() const { return run_.runtime.rank() == 0; }
  SaveRequest request(const Progress& progress) const;
  /// False: the new save is not made.
  bool make_way(const Progress& progress);
  void begin_beside_training(const Progress& progress);
  SaveOutcome save_now(const Progress& progress);
  void stalled(double seconds);
  void end(const SaveOutcome& outcome, bool must_succeed);
  void acknowledge(const SaveOutcome& outcome);
  void tell_failure(const Error& error);
  void warn_of_grace(double save_seconds);

  Run run_;
  SaveRequest base_;  // what all saves have in common
  uint64_t data_fingerprint_;
  std::optional<double> grace_s_;
  std::unique_ptr<SlowFileSystem> slow_;
  std::optional<CheckpointName> parent_;
  int64_t saved_step_ = -1;
  Pending pending_;
  std::optional<double> stall_seconds_;
  bool grace_checked_ = false;
  // Null: all saves are made while training stands still. The thread of the save reads the
  // snapshot.
  std::unique_ptr<GuardedSnapshot> snapshot_;
  std::unique_ptr<BackgroundSave> background_;
};

}  // namespace ferry
