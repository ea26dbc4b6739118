#include "checkpoint/chunk_loop.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>

#include "core/check.h"
#include "core/worker_pool.h"

namespace ferry {
namespace {

constexpr int kMaxThreads = 8;
/// One waits for the disk while the other computes a digest.
constexpr int kThreadsPerCpu = 2;
/// Starting a thread takes as long as writing a small part of this.
constexpr int64_t kBytesPerThread = int64_t{16} << 20;
/// CPUs beyond these are not counted: there are no more threads anyway.
constexpr int kCpusLookedAt = 4096;

struct FreeMemory {
  void operator()(char* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<char, FreeMemory>;

Buffer make_buffer(int64_t bytes) {
  const int64_t blocks = std::max<int64_t>(1, (bytes + kBlockBytes - 1) / kBlockBytes);
  Buffer buffer(static_cast<char*>(std::aligned_alloc(static_cast<size_t>(kBlockBytes),
                                                      static_cast<size_t>(blocks * kBlockBytes))));
  if (buffer == nullptr)
    fail(ExitCode::Resource, "error: no memory for ", bytes, " bytes of a checkpoint\n",
         "  why : the host is out of memory\n  try : fewer ranks on this host");
  return buffer;
}

int num_cpus() {
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(
      CPU_ALLOC(kCpusLookedAt), [](cpu_set_t* cpus) { CPU_FREE(cpus); });
  const size_t bytes = CPU_ALLOC_SIZE(kCpusLookedAt);
  CHECK(set != nullptr && sched_getaffinity(0, bytes, set.get()) == 0, "sched_getaffinity");
  return CPU_COUNT_S(bytes, set.get());
}

}  // namespace

int choose_io_threads(int64_t bytes) {
  return static_cast<int>(std::clamp<int64_t>(bytes / kBytesPerThread, 1,
                                              std::min(kThreadsPerCpu * num_cpus(), kMaxThreads)));
}

void for_each_chunk(int num_threads, int64_t count, int64_t buffer_bytes,
                    const std::function<void(int64_t, char*)>& work) {
  CHECK(num_threads >= 1, num_threads, " threads");
  const auto threads = static_cast<int>(std::clamp<int64_t>(count, 1, num_threads));
  std::atomic<int64_t> next = 0;
  std::mutex mutex;
  int64_t failed = count;
  std::exception_ptr error;
  const auto serve = [&](int64_t) {
    Buffer buffer;
    for (int64_t i; (i = next.fetch_add(1)) < count;) {
      try {
        if (buffer == nullptr) buffer = make_buffer(buffer_bytes);
        work(i, buffer.get());
      } catch (...) {
        next = count;  // all smaller ones have begun, and their errors are heard
        const std::lock_guard lock(mutex);
        if (i < failed) {
          failed = i;
          error = std::current_exception();
        }
      }
    }
  };
  WorkerPool(threads).run(threads, serve);
  if (error) std::rethrow_exception(error);
}

}  // namespace ferry
