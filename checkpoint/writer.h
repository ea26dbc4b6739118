#pragma once

// Saves a checkpoint so that at every moment, whatever fails, the newest acknowledged one is whole.
// The order is the protocol: shards written and synced -> their digests gathered -> manifest
// written and synced -> directory synced -> renamed to its final name -> parent synced -> manifest
// read back -> everything read back and checked -> acknowledged -> older ones deleted.

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/manifest.h"
#include "checkpoint/slice.h"
#include "core/comm/control.h"

namespace ferry {

struct SaveRequest {
  Path run_dir;
  int64_t step = 0;
  int64_t attempt = 0;                  // of begin_attempt
  std::span<const SliceToSave> slices;  // of this rank; together they tile every tensor
  // The rest counts on rank 0 only.
  State state;  // scalars that training continues from
  std::map<std::string, std::string>
      descriptions;  // of tensors, groups and "state/...", see global_file.h
  std::map<std::string, std::string> aliases;  // second names of groups, see global_file.h
  std::string config;                          // TOML, UTF-8
  std::string layout;
  std::string writer = "ferry";          // program and version
  std::optional<CheckpointName> parent;  // the checkpoint before this one; run empty: of this run
  int keep = 3;                          // at least 2
  bool verify = true;                    // read all files back, not only the manifest
  int64_t chunk_bytes = int64_t{4} << 20;
  int io_threads = 0;  // of every rank; 0: as many as choose_io_threads says
  FileSystem* file_system = &posix_file_system();
};

struct SaveReport {
  Path directory;
  std::string root;
  int64_t bytes = 0;         // of all files
  double write_seconds = 0;  // the slowest rank
  double sync_seconds = 0;   // the slowest rank
  double verify_seconds = 0;
  double seconds = 0;
  std::vector<std::string> removed;   // older checkpoints
  std::vector<std::string> warnings;  // the checkpoint is good nevertheless
};

/// Collective. Returns the same report on every rank when the checkpoint is acknowledged, or throws
/// the same error on every rank and leaves earlier checkpoints as they were. A checkpoint of the
/// same step is replaced.
SaveReport save_checkpoint(const SaveRequest& request, Control& control);

}  // namespace ferry
