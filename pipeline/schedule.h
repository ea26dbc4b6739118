#pragma once

// What each rank of a pipeline does, as a list of actions that a pure function makes, the simulator
// (pipeline/simulate.h) proves and the executor (pipeline/executor.h) runs.
//
//   GPipe         all forward passes, then all backward passes (Huang et al., 2019)
//   OneForwardOneBackward
//                 as few passes in flight as the stages behind need (Narayanan et al., 2019)
//   Interleaved   the same with several chunks of the model on each rank, which makes the bubble
//                 shorter by their number (Narayanan et al., 2021)
//   ForwardOnly   evaluation
//
// In all of them each chunk makes its backward passes in the order of micro-batches, so gradients
// are summed in the same order and a change of schedule or layout does not alter a bit of them.

#include <string>
#include <vector>

namespace ferry {

/// One pass of a micro-batch through one chunk (virtual stage) of the rank.
struct Action {
  enum class Kind { Forward, Backward };
  Kind kind = Kind::Forward;
  int chunk = 0;
  int micro = 0;
  bool operator==(const Action&) const = default;
};

enum class ScheduleKind { GPipe, OneForwardOneBackward, Interleaved, ForwardOnly };

/// What a schedule is made for.
struct ScheduleShape {
  ScheduleKind kind = ScheduleKind::OneForwardOneBackward;
  int num_ranks = 1;   // of the pipeline
  int num_chunks = 1;  // of each rank
  int num_micro = 1;   // micro-batches of a step
  int group = 0;       // micro-batches that a chunk runs in a row; 0: as many as ranks
  bool operator==(const ScheduleShape&) const = default;
};

/// The usual schedule for training: Interleaved if a rank has several chunks, else
/// OneForwardOneBackward, which on one rank is a backward pass after each forward pass.
ScheduleKind usual_schedule(int num_chunks);

/// The actions of one rank. Error(ExitCode::Usage) if an interleaved schedule cannot be made: the
/// group must lie between the ranks and the micro-batches, and the last, shorter group must not
/// have fewer micro-batches than there are ranks. Any other shape has a schedule.
std::vector<Action> make_schedule(const ScheduleShape& shape, int rank);
/// The same for all ranks.
std::vector<std::vector<Action>> make_schedules(const ScheduleShape& shape);

/// "F3" or, where ranks have several chunks, "F3.1": micro-batch 3 forward through chunk 1.
std::string action_text(const Action& action, int num_chunks);
/// A legend and a line per rank. Lines of more than `max_actions` actions (0: no limit) keep their
/// first and last and say how many are left out.
std::string schedule_text(const ScheduleShape& shape,
                          const std::vector<std::vector<Action>>& schedules, int max_actions = 0);

}  // namespace ferry
