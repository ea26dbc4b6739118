#pragma once

// Rewrites a checkpoint as if another number of ranks had saved it. The bytes of a tensor stay
// where they are until they are written: the old shards are mapped into memory, so that the system
// holds as much of them as it has room for.

#include <cstdint>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/writer.h"

namespace ferry {

constexpr int kMaxWriters = 256;

/// A part of a stored slice whose elements lie one after the other, there and in the file.
struct SlicePart {
  const StoredTensor* tensor = nullptr;  // of the manifest
  int file_idx = 0;
  int64_t address = 0;  // first byte in that file
  Box box;
};

/// Deals all slices to `num_writers`, cut where that makes the shares more equal. A share is at
/// most one row of a slice larger than the average. `manifest` must outlive the result.
std::vector<std::vector<SlicePart>> deal_slices(const Manifest& manifest, int num_writers);

/// Verifies `source`, then saves the same state, configuration and step as the only checkpoint of
/// the new run directory `run_dir`, by the protocol of docs/checkpoint_format.md.
/// Error(ExitCode::Usage) if the directory exists or the number of writers is not 1 to kMaxWriters;
/// Error(ExitCode::Storage) if `source` is damaged or cannot be written again; then the directory
/// is removed.
SaveReport reshard_checkpoint(const Checkpoint& source, const Path& run_dir, int num_writers);

}  // namespace ferry
