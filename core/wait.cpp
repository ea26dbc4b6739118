#include "core/wait.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

namespace ferry {
namespace {

using Clock = std::chrono::steady_clock;

// As long as it takes to put a thread to sleep and wake it.
constexpr std::chrono::microseconds kSpin{100};
constexpr std::chrono::microseconds kShortPause{20};
// Where a device waits for what the host enqueues next, for example in each layer for numbers of
// rows, a pause is time of the device, so pauses stay short for as long as such waits take.
constexpr std::chrono::milliseconds kShortPausesFor{100};
constexpr std::chrono::microseconds kLongPause{200};
// A check asks the driver, which takes microseconds.
constexpr std::chrono::milliseconds kCheckEvery{5};
constexpr std::chrono::milliseconds kWatchEvery{100};

std::atomic<double> limit{6000};

struct Checks {
  std::mutex mutex;
  std::list<std::function<void()>> list;
};

Checks& checks() {
  static auto* const all = new Checks;  // until the last wait of the process
  return *all;
}

void run_checks() {
  std::lock_guard lock(checks().mutex);
  for (const auto& check : checks().list) check();
}

// Runs the checks until one has failed for a while, or until it goes.
class StuckHostWatch {
 public:
  StuckHostWatch(double patience, std::function<void(const Error&)> on_stuck)
      : patience_(patience), on_stuck_(std::move(on_stuck)), thread_([this] { run(); }) {}
  ~StuckHostWatch() {
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  StuckHostWatch(const StuckHostWatch&) = delete;
  StuckHostWatch& operator=(const StuckHostWatch&) = delete;

 private:
  void run() {
    std::optional<Clock::time_point> failed;
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kWatchEvery, [this] { return ended_; })) {
      try {
        run_checks();
        failed.reset();
      } catch (const Error& error) {
        if (!failed) failed = Clock::now();
        if (Clock::now() - *failed < patience_) continue;
        lock.unlock();
        on_stuck_(error);
        return;
      }
    }
  }

  std::chrono::duration<double> patience_;
  std::function<void(const Error&)> on_stuck_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

std::shared_ptr<void> watch_for_stuck_host(double patience,
                                           std::function<void(const Error&)> on_stuck) {
  return std::make_shared<StuckHostWatch>(patience, std::move(on_stuck));
}

double wait_limit_seconds() { return limit; }

void set_wait_limit(double seconds) {
  CHECK(seconds > 0, "a wait of ", seconds, " s");
  limit = seconds;
}

void fail_wait(const std::string& what, double seconds) {
  fail(ExitCode::Lost, "work hangs: ", what, " was not done after ", seconds, " s, the limit is ",
       wait_limit_seconds(),
       " s (10 x FERRY_COMM_TIMEOUT_S)\n  why : a device is stuck, or a step takes longer than "
       "that\n  try : restart the job; a longer limit, where steps are that long");
}

std::shared_ptr<void> add_wait_check(std::function<void()> check) {
  std::lock_guard lock(checks().mutex);
  const auto place = checks().list.insert(checks().list.end(), std::move(check));
  return {nullptr, [place](void*) {
            std::lock_guard removing(checks().mutex);
            checks().list.erase(place);
          }};
}

void wait_until_ready(const std::string& what, const std::function<bool()>& ready) {
  const auto begin = Clock::now();
  auto next_check = begin + kCheckEvery;
  while (!ready()) {
    const auto now = Clock::now();
    if (now >= next_check) {
      run_checks();
      const std::chrono::duration<double> waited = now - begin;
      if (waited.count() > wait_limit_seconds()) fail_wait(what, waited.count());
      next_check = now + kCheckEvery;
    }
    if (now - begin < kSpin)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(now - begin < kShortPausesFor ? kShortPause : kLongPause);
  }
}

}  // namespace ferry
