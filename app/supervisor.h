#pragma once

// A process that watches a rank and says how it died.
//
// A launcher reports a rank that was killed with a number of its own, and nobody says what the rank
// was doing. So a rank that a launcher started forks, before it has threads, MPI or a GPU: the
// child is the rank; the parent only waits, prints one message that names rank, host, step and
// operation, and ends with ExitCode::Lost, at which the launcher ends the other ranks. Both are in
// one process group, to which launchers send their signals. Either ends with the other.

#include <functional>
#include <string>

namespace ferry {

struct Supervision {
  std::string rank;            // "rank 2 of 4"
  std::string prefix;          // "[rank 2] ": how messages of this rank begin
  std::string host;            // for messages
  double stopped_limit_s = 0;  // a rank that is stopped (SIGSTOP) longer is lost
  /// So is one that has made a mark, and none for longer than this: it hangs where it cannot look
  /// at the time, in a driver or a library.
  double silent_limit_s = 0;
};

/// In the parent: returns the exit code of the job; the signals of launchers are blocked from then.
/// In the child: never returns; runs `body` and exits with its code. A child that ends with 0 but
/// not from here is lost, too.
int supervise(const Supervision& supervision, const std::function<int()>& body);

}  // namespace ferry
