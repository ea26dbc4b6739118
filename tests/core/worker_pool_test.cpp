#include "core/worker_pool.h"

#include <gmock/gmock.h>
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "core/check.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class Pool : public ::testing::TestWithParam<int> {
 protected:
  WorkerPool pool_{GetParam()};
};

TEST_P(Pool, CallsEachIndexOnce) {
  EXPECT_EQ(pool_.num_threads(), GetParam());
  for (const int64_t count : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
    pool_.run(count, [&](int64_t i) { ++calls[static_cast<size_t>(i)]; });
    for (int64_t i = 0; i < count; ++i) EXPECT_EQ(calls[static_cast<size_t>(i)], 1) << i;
  }
}

TEST_P(Pool, SeesWhatWasWrittenBeforeAndIsSeenAfter) {
  // Plain memory: ThreadSanitizer names a run that does not order its threads with its caller.
  std::vector<int64_t> values(64);
  int64_t expected = 0;
  for (int64_t round = 0; round < 56; ++round) {
    for (int64_t& value : values) value += round;
    pool_.run(64, [&](int64_t i) { values[static_cast<size_t>(i)] *= 2; });
    expected = 2 * (expected + round);
  }
  for (const int64_t value : values) EXPECT_EQ(value, expected);
}

TEST_P(Pool, RethrowsTheFirstErrorAndGoesOn) {
  std::atomic<int> calls = 0;
  const auto work = [&](int64_t i) {
    ++calls;
    if (i == 0) fail(ExitCode::Data, "index ", i);
  };
  EXPECT_THAT([&] { pool_.run(1, work); }, ThrowsMessage<Error>(HasSubstr("index 0")));
  EXPECT_EQ(calls, 1);
  pool_.run(0, work);
  std::atomic<int64_t> sum = 0;
  pool_.run(10, [&](int64_t i) { sum += i; });
  EXPECT_EQ(sum, 45);
}

TEST_P(Pool, LeavesOutWhatHasNotBegunAfterAnError) {
  std::atomic<int64_t> calls = 0;
  EXPECT_THROW(pool_.run(int64_t{1} << 40,
                         [&](int64_t) {
                           ++calls;
                           fail(ExitCode::Data, "each call fails");
                         }),
               Error);
  EXPECT_GE(calls, 1);
  EXPECT_LE(calls, GetParam());
}

TEST_P(Pool, RunsFromAnyThread) {
  std::atomic<int64_t> sum = 0;
  for (int i = 0; i < 3; ++i)
    std::thread([&] { pool_.run(100, [&](int64_t k) { sum += k; }); }).join();
  EXPECT_EQ(sum, 3 * 4950);
}

TEST_P(Pool, RefusesARunWithinARun) {
  EXPECT_THAT([&] { pool_.run(1, [&](int64_t) { pool_.run(1, [](int64_t) {}); }); },
              ThrowsMessage<Error>(HasSubstr("one run at a time")));
  EXPECT_THAT([&] { pool_.run(-1, [](int64_t) {}); },
              ThrowsMessage<Error>(HasSubstr("loop of -1")));
}

INSTANTIATE_TEST_SUITE_P(Threads, Pool, ::testing::Values(1, 2, 5));

// Calls `body` once on each thread of the pool: no call returns before all have begun.
void run_on_all(WorkerPool& pool, const std::function<void()>& body) {
  std::mutex mutex;
  std::condition_variable all_here;
  std::set<std::thread::id> threads;
  pool.run(pool.num_threads(), [&](int64_t) {
    std::unique_lock lock(mutex);
    threads.insert(std::this_thread::get_id());
    all_here.notify_all();
    all_here.wait(lock, [&] { return static_cast<int>(threads.size()) == pool.num_threads(); });
    body();
  });
}

TEST(WorkerPool, WorksWithAllThreadsAtOnce) {
  WorkerPool pool(4);
  std::set<std::thread::id> threads;
  run_on_all(pool, [&] { threads.insert(std::this_thread::get_id()); });
  EXPECT_EQ(threads.size(), 4u);
  EXPECT_TRUE(threads.contains(std::this_thread::get_id()));
}

TEST(WorkerPool, InheritsTheCpusOfItsMaker) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &before)) ++cpu;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  WorkerPool pool(3);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  const auto caller = std::this_thread::get_id();
  int num_bound = 0;
  run_on_all(pool, [&] {
    cpu_set_t now;
    if (std::this_thread::get_id() == caller) return;
    EXPECT_EQ(sched_getaffinity(0, sizeof now, &now), 0);
    num_bound += CPU_EQUAL(&now, &one) != 0 ? 1 : 0;
  });
  EXPECT_EQ(num_bound, 2);
}

TEST(WorkerPool, RefusesNoThreads) {
  EXPECT_THAT([] { WorkerPool pool(0); }, ThrowsMessage<Error>(HasSubstr("a pool of 0 threads")));
}

}  // namespace
}  // namespace ferry
