#pragma once

#include "app/run_config.h"
#include "core/comm/runtime.h"

namespace ferry {

struct CheckpointBenchOptions {
  double gib = 0;         // of state over all ranks; 0: that of the configuration's model
  std::string directory;  // on the disk that is measured
  int64_t rounds = 3;     // the median counts
  bool json = false;
  std::string command;
};

/// Checkpoints of random FP32 state on the device, a share on every rank, beside plain files of the
/// same bytes, threads and disk, in turn: written directly and through the page cache and synced,
/// read cold; saved (written, synced, read back from the device), loaded with every digest checked;
/// and the copy of the state to host memory, which is all that a step can wait for in an
/// asynchronous save. Prints rates and their ratios to those of the files, one row. Works in a new
/// directory in `directory`, which is removed. Error(ExitCode::Storage) if the disk does not do.
ExitCode bench_checkpoint(const RunConfig& config, Runtime& runtime,
                          const CheckpointBenchOptions& options);

}  // namespace ferry
