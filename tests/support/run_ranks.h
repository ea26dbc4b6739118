#pragma once

// The same test on 1, 2, 4 ranks without MPI: ranks are threads of this process.

#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/comm/thread_group.h"

namespace ferry::testing {

/// Runs body(group, control) on `size` threads. If one throws, the others' waits end with
/// Error(ExitCode::Lost), and the first error is rethrown here. A rank that never comes to a
/// collective of the others is an error after `timeout_s`.
inline void run_ranks(int size, const std::function<void(Group&, Control&)>& body,
                      double timeout_s = 60) {
  ThreadWorld world(size, timeout_s);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto failed = [&](const std::string& text) {
        std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        world.fail_all(concat("rank ", rank, " failed: ", text));
      };
      try {
        const std::unique_ptr<Group> group = world.group(rank);
        body(*group, world.control(rank));
      } catch (const std::exception& error) {
        failed(error.what());
      } catch (...) {
        failed("an unknown exception");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace ferry::testing
