#pragma once

// What one rank runs: its actions, and until when it keeps the messages that they send.
//
// To give the memory of a message back makes a rank wait for the end of the send, which is not
// before the receiver has begun the action before the one that takes the message (a receive is
// posted then, see pipeline/executor.h). A rank that gives it back at once takes turns with its
// neighbours, or waits for one that waits for it. So a rank keeps a message until an action whose
// own input cannot come before the receiver has begun the action that takes the message: then the
// send is done, and to give the memory back waits for nothing. Which action that is follows from
// the lists of all ranks.

#include <vector>

#include "pipeline/schedule.h"

namespace ferry {

struct RankSchedule {
  std::vector<Action> actions;
  /// For each action that sends a message to another rank: at the beginning of which action, by
  /// index, the message is let go of. The number of actions if none tells that it has come. Where
  /// nothing at all comes back from the receiver (evaluation with one chunk per rank), ranks cannot
  /// wait for each other; there the second action after the send waits for its end, so that not all
  /// messages of the list are kept. 0 for actions that send nothing.
  std::vector<int> kept_until;
};

/// The schedule of one rank, after those of all ranks have been made and proved. Errors of
/// make_schedules() and simulate().
RankSchedule proved_schedule(const ScheduleShape& shape, int rank);

}  // namespace ferry
