#pragma once

// Which checkpoint a run continues from: the newest one that verifies. LATEST is not consulted.

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "core/comm/control.h"

namespace ferry {

struct Rejected {
  Path directory;
  std::string reason;
};

struct Latest {
  std::optional<Checkpoint> checkpoint;
  std::vector<Rejected> rejected;       // newer than the one found, newest first
  std::vector<std::string> unfinished;  // temporary directories of attempts that never published
};

/// Collective; every rank gets the same answer. Reads every byte of the candidates, each rank its
/// share of the files. No checkpoint and nothing rejected means that the run has none; rejected
/// ones without a checkpoint must not be taken for a fresh start.
Latest find_latest(const Path& run_dir, Control& control,
                   FileSystem& file_system = posix_file_system());

/// Collective: verifies the files of a checkpoint, each by a rank other than its writer's (on
/// another node, if ranks are numbered node by node), on `num_threads` threads as verify_file has
/// them. Throws on every rank if one is damaged.
void verify_together(const Path& directory, bool from_device, Control& control,
                     FileSystem& file_system, int num_threads = 0);

}  // namespace ferry
