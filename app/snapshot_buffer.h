#pragma once

// This rank's share of the state as it is at one moment, for a save that is written while training
// goes on. State that a store guards (it is in host memory already) is copied only where an update
// is about to change it before it was written; all other state is copied to host memory at once,
// behind the next forward and backward.

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "app/train_state.h"
#include "core/copy_on_write.h"

namespace ferry {

/// What a SnapshotBuffer is made of, all of which outlive it. `compute` is the stream of updates.
struct SnapshotSource {
  Stream& compute;
  std::vector<StoredRows> rows;
  const UpdateRule& rule;
  StateStore& store;
};

class SnapshotBuffer {
 public:
  /// Allocates the host memory of copies from the device (page-locked for a GPU) now, so that what
  /// does not fit fails here: Error(ExitCode::Resource). Copies of guarded state take at most
  /// `max_copy_bytes` at a time, 0: as much as it has, when they are made.
  SnapshotBuffer(SnapshotSource source, int64_t max_copy_bytes);
  ~SnapshotBuffer();
  SnapshotBuffer(const SnapshotBuffer&) = delete;
  SnapshotBuffer& operator=(const SnapshotBuffer&) = delete;

  /// Begins a snapshot of the state after all work on the compute stream so far, and returns when
  /// the copies are enqueued. Between steps; the snapshot before was released.
  void take();
  /// Makes the compute stream wait until what the next update changes is copied. Before each
  /// update.
  void wait_before_update();

  /// Of the last take(): what to save; once copied() is there.
  const std::vector<SliceToSave>& slices() const { return slices_; }
  const Event& copied() const { return copied_; }
  /// Nobody reads the slices any more. Any thread.
  void release() { guard_->end(); }

  /// Since the last call, seconds that updates waited for copies: of the compute stream, if it has
  /// reached the end of its wait, and of updates on the host for memory of copies.
  double take_waited_seconds();
  /// Bytes that the snapshots so far copied of guarded state.
  int64_t copied_on_write() const { return guard_->copied_bytes(); }
  /// Bytes reserved for copies from the device.
  int64_t reserved_bytes() const;

 private:
  class GuardedSource;
  /// Host memory for each part that is copied at once; what is not needed any more is dropped.
  void reserve(const std::vector<StoredPart>& parts);

  SnapshotSource source_;
  std::unique_ptr<Stream> copies_;
  std::shared_ptr<CopyOnWrite> guard_;
  std::unique_ptr<GuardedSource> guarded_;
  std::map<std::string, Tensor> host_;  // by the part's name
  std::vector<SliceToSave> slices_;
  Event copied_;
  bool update_waits_ = false;  // the next one
  std::shared_ptr<const TimeStamp> wait_begin_, wait_end_;
  double guard_waited_ = 0;  // told already
};

}  // namespace ferry
