#pragma once

// What a rank's saved tensors take in a step: its passes on sizes instead of tensors, with whatever
// moves them.

#include <span>
#include <vector>

#include "app/saved_groups.h"
#include "app/saved_layers.h"
#include "app/saved_stash.h"

namespace ferry {

struct SavedStep {
  std::vector<PassAction> actions;   // in the order of the rank's schedule
  std::vector<PassRecords> chunks;   // what a pass through each chunk saves
  OffloadedTensors offloaded;        // without modules: nothing
  std::vector<PassGroups> moving;    // the groups of offloaded, as moving_groups() gives them
  OffloadedLayers layers;            // of none: nothing
  bool stash = false;                // what experts save goes to the paged stash
  double stash_capacity_factor = 1;  // rows of experts over those in use
};

struct SavedStepMemory {
  SavedLedger ledger;
  StashedPasses stashed;
};
SavedStepMemory run_step(const SavedStep& step);

}  // namespace ferry
