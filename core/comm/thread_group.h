#pragma once

// Ranks as threads of one process, for tests and ThreadSanitizer. Collectives run on each rank's
// CPU stream; sums are made in rank order. A send waits for its receive.

#include <memory>
#include <string>
#include <vector>

#include "core/comm/control.h"
#include "core/comm/group.h"
#include "core/comm/runtime.h"

namespace ferry {

/// Where the threads meet; defined in thread_group.cpp.
class ThreadRoom;

class ThreadWorld {
 public:
  /// A call that waits longer than `timeout_s` fails, and everybody's calls with it.
  explicit ThreadWorld(int size, double timeout_s = comm_timeout_seconds());
  ~ThreadWorld();
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;

  int size() const { return static_cast<int>(controls_.size()); }
  /// All ranks, as `rank` sees them. Call once for each rank; the group may outlive the world.
  std::unique_ptr<Group> group(int rank);
  Control& control(int rank);
  /// Runtime::make_control() of `rank`. Must not outlive the world.
  std::unique_ptr<Control> make_control(int rank, const std::string& name);
  /// Ends every wait, now and later, with Error(ExitCode::Lost) that gives this reason. The first
  /// reason stays.
  void fail_all(const std::string& reason);

 private:
  std::shared_ptr<ThreadRoom> room_;
  std::vector<std::unique_ptr<Control>> controls_;
};

}  // namespace ferry
