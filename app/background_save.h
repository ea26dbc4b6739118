#pragma once

// Writes a checkpoint on a thread of its own, with a control plane of its own: ranks that train and
// ranks that write do not wait for each other's messages.

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/writer.h"
#include "core/comm/control.h"
#include "core/stream.h"

namespace ferry {

/// What a save was and how it ended, on this rank; all ranks have the same report or the same
/// error, unless a rank was lost.
struct SaveOutcome {
  SaveReport report;
  std::exception_ptr error;  // null: the checkpoint is acknowledged
  double copy_seconds = 0;   // from the begin of the save until state was copied from the device
};

/// The calling thread is the one that trains, but for what is said of others.
class BackgroundSave {
 public:
  /// `control`: used by no other thread.
  explicit BackgroundSave(std::unique_ptr<Control> control);
  /// Waits for the end of a save in flight.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Begins to save; none is in flight. Collective. The slices of the request are those of the
  /// memory that is ready after `copied`, and stay until `at_end`, which the thread calls when it
  /// needs them no more.
  void begin(SaveRequest request, Event copied, std::function<void()> at_end);
  bool in_flight() const { return thread_.joinable(); }
  /// True while this rank's thread has work to do.
  bool busy() const { return busy_; }
  /// Waits for the end of the save in flight.
  SaveOutcome finish();

 private:
  void run(const SaveRequest& request, const Event& copied);

  std::unique_ptr<Control> control_;
  SaveOutcome outcome_;  // of the thread until it is joined
  std::atomic<bool> busy_ = false;
  std::thread thread_;
};

}  // namespace ferry
