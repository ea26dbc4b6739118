#include "core/wait.h"

#include <atomic>
#include <chrono>
#include <list>
#include <mutex>
#include <thread>

#include "core/check.h"

namespace ferry {
namespace {

using Clock = std::chrono::steady_clock;

// As long as it takes to put a thread to sleep and wake it.
constexpr std::chrono::microseconds kSpin{100};
constexpr std::chrono::microseconds kShortPause{20};
constexpr std::chrono::microseconds kLongPause{200};  // after kCheckEvery
// A check asks the driver, which takes microseconds.
constexpr std::chrono::milliseconds kCheckEvery{5};

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

}  // namespace

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
      std::this_thread::sleep_for(now - begin < kCheckEvery ? kShortPause : kLongPause);
  }
}

}  // namespace ferry
