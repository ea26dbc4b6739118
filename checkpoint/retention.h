#pragma once

// Deletes old checkpoints, only after a newer one has been acknowledged.

#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace ferry {

struct RetentionReport {
  std::vector<std::string> removed;   // names of step directories
  std::vector<std::string> warnings;  // a failed deletion is no failed save
};

/// Keeps the acknowledged step `newest`, the `keep` - 1 valid ones before it, and all newer ones;
/// directories without a valid manifest or with files of wrong sizes do not count. What goes is
/// first renamed into the trash, so that a half-deleted directory is never taken for a checkpoint.
/// `keep` must be at least 2. Never throws Error.
RetentionReport retire_checkpoints(FileSystem& file_system, const Path& run_dir, int64_t attempt,
                                   int64_t newest, int keep);

/// Moves a directory of RUN/ckpt into the trash and returns its new path.
Path move_to_trash(FileSystem& file_system, const Path& run_dir, const std::string& name,
                   int64_t attempt);

}  // namespace ferry
