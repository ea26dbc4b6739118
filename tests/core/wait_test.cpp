#include "core/wait.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "core/stream_cpu.h"
#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Restores the limit of the process.
class Limit {
 public:
  explicit Limit(double seconds) { set_wait_limit(seconds); }
  ~Limit() { set_wait_limit(before_); }

 private:
  double before_ = wait_limit_seconds();
};

std::string lost(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Lost) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(Wait, EndsWhenTheWorkIsDone) {
  int looks = 0;
  wait_until_ready("five looks", [&] { return ++looks == 5; });
  EXPECT_EQ(looks, 5);
  std::atomic<bool> done{false};
  std::thread worker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    done = true;
  });
  wait_until_ready("a thread", [&] { return done.load(); });
  EXPECT_TRUE(done);
  worker.join();
}

TEST(Wait, EndsAtTheLimitAndSaysForWhat) {
  const Limit limit(0.05);
  EXPECT_THAT(lost([] { wait_until_ready("stream 'compute'", [] { return false; }); }),
              AllOf(HasSubstr("work hangs: stream 'compute' was not done after 0.0"),
                    HasSubstr("the limit is 0.05 s (10 x FERRY_COMM_TIMEOUT_S)"),
                    HasSubstr("try : restart the job")));
}

TEST(Wait, TheLimitIsAboveZero) {
  EXPECT_THAT([] { set_wait_limit(0); }, ThrowsMessage<Error>(HasSubstr("a wait of 0 s")));
}

TEST(Wait, EndsWithTheErrorOfACheck) {
  std::atomic<int> num_checks{0};
  const auto never = [] { return false; };
  {
    const auto check = add_wait_check([&] {
      if (++num_checks == 3) fail(ExitCode::Lost, "a peer is gone");
    });
    EXPECT_THAT([&] { wait_until_ready("work", never); }, ThrowsMessage<Error>("a peer is gone"));
    EXPECT_EQ(num_checks, 3);
  }
  const Limit limit(0.05);  // without the check only the limit ends it
  EXPECT_THAT(lost([&] { wait_until_ready("work", never); }), HasSubstr("work hangs"));
  EXPECT_EQ(num_checks, 3);
}

// Two checks, of which the one that was added first goes first.
TEST(Wait, ARemovedCheckIsTheRightOne) {
  auto first = add_wait_check([] { fail(ExitCode::Lost, "first"); });
  const auto second = add_wait_check([] { fail(ExitCode::Lost, "second"); });
  const auto never = [] { return false; };
  EXPECT_THAT([&] { wait_until_ready("work", never); }, ThrowsMessage<Error>("first"));
  first.reset();
  EXPECT_THAT([&] { wait_until_ready("work", never); }, ThrowsMessage<Error>("second"));
}

// Of a host that is stuck elsewhere than in a wait.
TEST(StuckHost, IsToldOfByAnErrorThatStays) {
  std::atomic<bool> is_gone{false};
  const auto check = add_wait_check([&] {
    if (is_gone) fail(ExitCode::Lost, "a peer is gone");
  });
  std::promise<std::string> told;
  const auto begin = std::chrono::steady_clock::now();
  const auto watch = watch_for_stuck_host(
      0.3, [&](const Error& error) { told.set_value(error.what()); });  // a second time would throw
  is_gone = true;
  EXPECT_EQ(told.get_future().get(), "a peer is gone");
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(300));
}

TEST(StuckHost, IsNotToldOfWhenTheErrorGoesOrTheWatchEnds) {
  std::atomic<int> num_checks{0};
  const auto check = add_wait_check([&] {
    if (++num_checks == 1) fail(ExitCode::Lost, "for a moment");
  });
  bool told = false;
  {
    const auto watch = watch_for_stuck_host(0.15, [&](const Error&) { told = true; });
    while (num_checks < 4) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(told);
}

class WaitOfCpuStream : public CpuTest {};

TEST_F(WaitOfCpuStream, NamesTheStream) {
  std::promise<void> opened;
  enqueue_cpu(stream(), [gate = opened.get_future().share()] { gate.wait(); });
  const Event event = stream().record();
  {
    const Limit limit(0.05);
    EXPECT_THAT(lost([&] { event.wait_host(); }), HasSubstr("work hangs: stream 'test'"));
    EXPECT_THAT(lost([&] { stream().synchronize(); }), HasSubstr("work hangs: stream 'test'"));
    // A full queue is a wait, too.
    EXPECT_THAT(lost([&] {
                  for (int i = 0; i < 1000; ++i) enqueue_cpu(stream(), [] {});
                }),
                HasSubstr("work hangs: stream 'test'"));
  }
  opened.set_value();
  EXPECT_NO_THROW(event.wait_host());
}

}  // namespace
}  // namespace ferry::testing
