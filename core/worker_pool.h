#pragma once

// Threads that share one piece of work at a time: a loop over the host's memory is faster with
// several, until they reach the rate of the memory.

#include <cstdint>
#include <functional>
#include <memory>

namespace ferry {

class WorkerPool {
 public:
  /// `num_threads` >= 1, the caller of run() among them. The others inherit the CPUs to which the
  /// calling thread is bound, and sleep between runs.
  explicit WorkerPool(int num_threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int num_threads() const;
  /// Calls work(i) once for each i in [0, count), in any order, and returns when all are done;
  /// rethrows the first error, after which calls that have not begun are left out. One run at a
  /// time, from any thread.
  void run(int64_t count, const std::function<void(int64_t)>& work);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ferry
