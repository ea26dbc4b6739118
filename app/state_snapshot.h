#pragma once

// This rank's share of the state in host memory, as a save reads it: state that is there anyway is
// read where it is, and of all other there are copies. For a save during which nothing changes; see
// app/guarded_snapshot.h for one while training goes on.

#include <vector>

#include "app/train_state.h"

namespace ferry {

class TrainModel;

/// What a snapshot is made of, all of which outlive it. `compute` is the stream of updates.
struct SnapshotSource {
  Stream& compute;
  std::vector<StoredRows> rows;
  const UpdateRule& rule;
  StateStore& store;
};
SnapshotSource snapshot_source(TrainModel& model);

class StateSnapshot {
 public:
  /// The state as it is when all updates and all work on the compute stream are done; waits for it.
  static StateSnapshot now(SnapshotSource source);

  /// Copies nothing yet. Without `guarded`, state in host memory of the stored type is read in
  /// place. With it, only what the store guards is, through `guarded`, which outlives this.
  explicit StateSnapshot(SnapshotSource source, SliceSource* guarded = nullptr);

  /// Allocates the host memory of copies (page-locked for a GPU) before take() does:
  /// Error(ExitCode::Resource).
  void reserve();
  /// Enqueues copies of the state as it is then, over those of the take() before. All updates are
  /// done.
  void take(Stream& stream);

  /// Of the last take(): what to save, once `stream` has made the copies.
  const std::vector<SliceToSave>& slices() const { return slices_; }
  /// Bytes of memory for copies.
  int64_t reserved_bytes() const;

 private:
  std::vector<StoredPart> parts() const;
  bool is_read_in_place(const StoredPart& part) const;
  /// Keeps the memory of copies that are still needed, as state may have moved.
  void reserve(const std::vector<StoredPart>& parts);

  SnapshotSource source_;
  SliceSource* guarded_;
  std::vector<Tensor> copies_;  // of each part; undefined if it is read in place
  std::vector<SliceToSave> slices_;
};

}  // namespace ferry
