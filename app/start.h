#pragma once

// Where a run begins: from a checkpoint or from scratch, in a run directory that it may use.

#include <optional>
#include <string>

#include "app/data/token_dataset.h"
#include "app/run_config.h"
#include "app/train_model.h"
#include "checkpoint/directory.h"
#include "core/comm/runtime.h"

namespace ferry {

struct Start {
  Progress progress;
  Attempt attempt;
  std::optional<CheckpointName> parent;  // the checkpoint that the run continues
  bool parent_is_here = false;           // it is in the run directory
  std::string description;               // what was done and why, for the banner
};

/// Finds the checkpoint that checkpoint.resume asks for, loads it into the model, and takes the run
/// directory (unless an Error says why it may not). Collective.
Start begin_run(const RunConfig& config, Runtime& runtime, TrainModel& model,
                const TokenDataset& train_data);

}  // namespace ferry
