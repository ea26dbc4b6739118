#pragma once

// Proves that a pipeline's schedules work, and says what they cost, without running them.
//
// The ranks exchange messages as the executor's do: an activation goes to the stage behind, a
// gradient to the stage before; each pair of ranks has one channel per direction and meaning, which
// keeps messages in order and does not label them; a send never blocks, a receive waits.

#include <string>
#include <vector>

#include "pipeline/schedule.h"

namespace ferry {

/// Time of one pass through one chunk, and of one message. Any unit.
struct ActionCosts {
  double forward = 1;
  double backward = 2;
  double message = 0;
};

struct RankSimulation {
  double work = 0;                 // time of its passes
  int peak_in_flight = 0;          // most forward passes whose backward pass is not done
  std::vector<int> peak_of_chunk;  // the same of each chunk alone
};

/// An action in the order in which all ranks together can run theirs.
struct OrderedAction {
  int rank;
  int action;       // index in the rank's list
  int sender = -1;  // index in the order of the action whose message it takes, -1 if it takes none
};

struct Simulation {
  double makespan = 0;  // until the last rank is done
  /// (makespan - work) / work of the rank that works most: (p - 1) / (m * v) for p ranks, m
  /// micro-batches and v chunks in the ideal case.
  double bubble = 0;
  std::vector<RankSimulation> ranks;
  /// All actions of all ranks, each behind those that it needs.
  std::vector<OrderedAction> order;
};

/// Error(ExitCode::Internal) naming rank and action if a pass is missing, made twice or unknown, a
/// backward pass comes before its forward pass, a message arrives where another one is expected, is
/// never received, or if ranks wait for each other.
Simulation simulate(const ScheduleShape& shape, const std::vector<std::vector<Action>>& schedules,
                    const ActionCosts& costs = {});

/// One line: "bubble 37.5 % of the work, most passes in flight 4 3 2 1".
std::string simulation_text(const Simulation& simulation);

}  // namespace ferry
