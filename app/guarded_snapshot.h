#pragma once

// A StateSnapshot that stays as it is while training goes on. State that a store guards (it is in
// host memory already) is copied only where an update is about to change it before it was written;
// all other state is copied to host memory at once, behind the next forward and backward.

#include <memory>
#include <vector>

#include "app/state_snapshot.h"
#include "core/copy_on_write.h"

namespace ferry {

class GuardedSnapshot {
 public:
  /// Allocates the host memory of copies from the device (page-locked for a GPU) now, so that what
  /// does not fit fails here: Error(ExitCode::Resource). Copies of guarded state take at most
  /// `max_copy_bytes` at a time, 0: as much as it has, when they are made.
  GuardedSnapshot(SnapshotSource source, int64_t max_copy_bytes);
  ~GuardedSnapshot();
  GuardedSnapshot(const GuardedSnapshot&) = delete;
  GuardedSnapshot& operator=(const GuardedSnapshot&) = delete;

  /// Begins a snapshot of the state after all work on the compute stream so far, and returns when
  /// the copies are enqueued. Between steps; the snapshot before was released.
  void take();
  /// Makes the compute stream wait until what the next update changes is copied. Before each
  /// update.
  void wait_before_update();

  /// Of the last take(): what to save; once copied() is there.
  const std::vector<SliceToSave>& slices() const { return snapshot_.slices(); }
  const Event& copied() const { return copied_; }
  /// Nobody reads the slices any more. Any thread.
  void release() { guard_->end(); }

  /// Since the last call, seconds that updates waited for copies: of the compute stream, if it has
  /// reached the end of its wait, and of updates on the host for memory of copies.
  double take_waited_seconds();
  /// Bytes that the snapshots so far copied of guarded state.
  int64_t copied_on_write() const { return guard_->copied_bytes(); }
  /// Bytes reserved for copies from the device.
  int64_t reserved_bytes() const { return snapshot_.reserved_bytes(); }

 private:
  class GuardedSource;

  Stream& compute_;
  std::unique_ptr<Stream> copies_;
  std::shared_ptr<CopyOnWrite> guard_;
  std::unique_ptr<GuardedSource> guarded_;
  StateSnapshot snapshot_;
  Event copied_;
  bool update_waits_ = false;  // the next one
  std::shared_ptr<const TimeStamp> wait_begin_, wait_end_;
  double guard_waited_ = 0;  // told already
};

}  // namespace ferry
