#pragma once

// Chooses what activation offload moves so that a step gets at most a given part slower. The
// opposite of the rules of offload_plan.h, which say what to move whatever it costs.

#include <span>
#include <vector>

#include "offload/offload_simulation.h"

namespace ferry {

struct BudgetChoice {
  std::vector<PassGroups> passes;  // with `offload` set
  OffloadForecast forecast;
  int64_t num_groups = 0;      // that are to move in a pass through every chunk
  int64_t num_candidates = 0;  // that have bytes, of these passes
};

/// Sets `offload` of the first groups of every chunk, the first chunk's first layer first, the same
/// in all micro-batches: as many as lower the peak most by simulation, of those that make a step at
/// most 1 + `budget` times as long as without offload; and no more, because a copy that is not done
/// when backward begins saves nothing. `passes` has all groups that could move, in the order of the
/// backward passes; what their `offload` says is ignored. Nothing moves at a rate of 0. The same
/// arguments give the same choice.
BudgetChoice choose_groups(std::span<const PassAction> actions, std::vector<PassGroups> passes,
                           const OffloadConditions& conditions, double budget);

}  // namespace ferry
