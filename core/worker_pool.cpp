#include "core/worker_pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/check.h"

namespace ferry {
namespace {

// Runs that follow each other closely find the threads awake: waking one takes about as long.
constexpr std::chrono::microseconds kSpin(20);

template <class Condition>
void spin_until(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  while (!condition() && std::chrono::steady_clock::now() < end) {
  }
}

}  // namespace

// A run is open while `work` is set. Threads join it under the mutex, take indices from `next`, and
// leave; the caller closes it and waits for those that have joined, not for those still asleep.
struct WorkerPool::State {
  std::mutex mutex;
  std::condition_variable opened;    // or stopping
  std::condition_variable all_left;  // num_joined is 0
  const std::function<void(int64_t)>* work = nullptr;
  int64_t count = 0;
  bool stopping = false;
  std::exception_ptr error;
  std::atomic<uint64_t> run_idx = 0;  // of the last run that was opened
  std::atomic<int> num_joined = 0;
  std::atomic<int64_t> next = 0;
  std::atomic<bool> running = false;
  std::vector<std::thread> threads;

  ~State() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    opened.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  void take_indices(const std::function<void(int64_t)>& body, int64_t end) {
    try {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < end;) body(i);
    } catch (...) {
      next = end;
      std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  }

  void serve() {
    uint64_t last_run = 0;
    while (true) {
      spin_until([&] { return run_idx.load(std::memory_order_relaxed) != last_run; });
      std::unique_lock lock(mutex);
      opened.wait(lock, [&] { return stopping || (work != nullptr && run_idx != last_run); });
      if (stopping) return;
      last_run = run_idx;
      const auto* body = work;
      const int64_t end = count;
      ++num_joined;
      lock.unlock();
      take_indices(*body, end);
      lock.lock();
      if (--num_joined == 0) all_left.notify_one();
    }
  }

  void run(int64_t new_count, const std::function<void(int64_t)>& new_work) {
    {
      std::lock_guard lock(mutex);
      work = &new_work;
      count = new_count;
      next = 0;
      ++run_idx;
    }
    opened.notify_all();
    take_indices(new_work, new_count);
    spin_until([&] { return num_joined.load(std::memory_order_relaxed) == 0; });
    std::unique_lock lock(mutex);
    work = nullptr;
    all_left.wait(lock, [&] { return num_joined == 0; });
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
  }
};

WorkerPool::WorkerPool(int num_threads) : state_(std::make_unique<State>()) {
  CHECK(num_threads >= 1, "a pool of ", num_threads, " threads");
  try {
    for (int i = 1; i < num_threads; ++i)
      state_->threads.emplace_back([state = state_.get()] { state->serve(); });
  } catch (const std::system_error& system) {
    fail(ExitCode::Resource, "error: cannot start ", num_threads,
         " threads for work on the host: ", system.what(),
         "\n  why : the system or a container limits the threads of a process\n",
         "  try : raise the limit (ulimit -u), or give this process fewer CPUs");
  }
}

WorkerPool::~WorkerPool() = default;

int WorkerPool::num_threads() const { return static_cast<int>(state_->threads.size()) + 1; }

void WorkerPool::run(int64_t count, const std::function<void(int64_t)>& work) {
  CHECK(count >= 0, "a loop of ", count);
  CHECK(!state_->running.exchange(true), "a pool does one run at a time");
  struct Done {
    std::atomic<bool>& running;
    ~Done() { running = false; }
  } done{state_->running};
  state_->run(count, work);
}

}  // namespace ferry
