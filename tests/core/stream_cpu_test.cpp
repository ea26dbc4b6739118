#include "core/stream_cpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class StreamCpu : public CpuTest {
 protected:
  // A task that holds its stream until open() is called.
  class Gate {
   public:
    explicit Gate(Stream& stream) {
      enqueue_cpu(stream, [opened = opened_.get_future().share()] { opened.wait(); });
    }
    void open() { opened_.set_value(); }

   private:
    std::promise<void> opened_;
  };
  std::unique_ptr<Stream> make_stream() { return device().make_stream("other"); }
};

TEST_F(StreamCpu, RunsTasksInOrder) {
  std::vector<int> ran;  // no lock: synchronize() orders it with the stream's thread
  for (int i = 0; i < 2000; ++i) enqueue_cpu(stream(), [&ran, i] { ran.push_back(i); });
  stream().synchronize();
  ASSERT_EQ(ran.size(), 2000u);
  for (int i = 0; i < 2000; ++i) EXPECT_EQ(ran[i], i);
}

TEST_F(StreamCpu, EventIsReadyAfterTheWorkBeforeIt) {
  Gate gate(stream());
  const Event event = stream().record();
  EXPECT_FALSE(event.ready());
  gate.open();
  event.wait_host();
  EXPECT_TRUE(event.ready());
  EXPECT_TRUE(Event().ready());
  EXPECT_NO_THROW(Event().wait_host());
}

TEST_F(StreamCpu, WaitsForAnEventOfAnotherStream) {
  const auto other = make_stream();
  int value = 0;  // no lock: the event orders both threads, which ThreadSanitizer checks
  Gate gate(*other);
  enqueue_cpu(*other, [&value] { value = 7; });
  stream().wait(other->record());
  int seen = 0;
  enqueue_cpu(stream(), [&] { seen = value; });
  const Event after = stream().record();
  EXPECT_FALSE(after.ready());
  gate.open();
  after.wait_host();
  EXPECT_EQ(seen, 7);
}

TEST_F(StreamCpu, WaitingForADefaultEventIsNothing) {
  stream().wait(Event());
  EXPECT_NO_THROW(stream().synchronize());
}

TEST_F(StreamCpu, ErrorIsStickyAndLaterTasksAreDropped) {
  const Event before = stream().record();
  enqueue_cpu(stream(), [] { fail(ExitCode::Numerical, "loss is nan"); });
  bool ran = false;
  enqueue_cpu(stream(), [&ran] { ran = true; });
  const Event after = stream().record();
  EXPECT_NO_THROW(before.wait_host());
  EXPECT_THAT([&] { after.wait_host(); }, ThrowsMessage<Error>("loss is nan"));
  EXPECT_TRUE(after.ready());
  for (int i = 0; i < 2; ++i) {
    try {
      stream().synchronize();
      FAIL() << "synchronize() forgot the error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::Numerical);
    }
  }
  EXPECT_FALSE(ran);
}

TEST_F(StreamCpu, TheFirstErrorIsKept) {
  enqueue_cpu(stream(), [] { fail(ExitCode::Internal, "first"); });
  enqueue_cpu(stream(), [] { fail(ExitCode::Internal, "second"); });
  EXPECT_THAT([&] { stream().synchronize(); }, ThrowsMessage<Error>("first"));
}

TEST_F(StreamCpu, ErrorPassesToAStreamThatWaits) {
  const auto other = make_stream();
  enqueue_cpu(*other, [] { fail(ExitCode::Data, "bad token"); });
  stream().wait(other->record());
  bool ran = false;
  enqueue_cpu(stream(), [&ran] { ran = true; });
  EXPECT_THAT([&] { stream().synchronize(); }, ThrowsMessage<Error>("bad token"));
  EXPECT_FALSE(ran);
}

// While a task runs, at most 512 more are queued, however fast they are made.
TEST_F(StreamCpu, QueueIsBounded) {
  constexpr int kMaxQueued = 512, kNumTasks = 4000;
  std::atomic<int> num_enqueued{0};
  int num_started = 0, most_ahead = 0;
  enqueue_cpu(stream(), [&] {  // lets the queue fill, and time pass for it to overfill
    while (num_enqueued < kMaxQueued) std::this_thread::yield();
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    most_ahead = num_enqueued;
  });
  for (int i = 0; i < kNumTasks; ++i) {
    enqueue_cpu(stream(), [&] {
      ++num_started;
      most_ahead = std::max(most_ahead, num_enqueued - num_started);
    });
    ++num_enqueued;
  }
  stream().synchronize();
  EXPECT_EQ(num_started, kNumTasks);
  EXPECT_LE(most_ahead, kMaxQueued);
}

TEST_F(StreamCpu, DestructorRunsWhatIsQueued) {
  int num_ran = 0;
  {
    const auto other = make_stream();
    for (int i = 0; i < 100; ++i) enqueue_cpu(*other, [&num_ran] { ++num_ran; });
  }
  EXPECT_EQ(num_ran, 100);
}

TEST_F(StreamCpu, ATaskCannotEnqueueOnItsOwnStream) {
  enqueue_cpu(stream(), [this] { enqueue_cpu(stream(), [] {}); });
  EXPECT_THAT(
      [&] { stream().synchronize(); },
      ThrowsMessage<Error>(HasSubstr("a task of stream 'test' enqueues on its own stream")));
}

TEST_F(StreamCpu, ZeroAndCopy) {
  const Tensor from = from_host(stream(), "from", std::vector<float>{1, 2, 3, 4}, {4});
  const Tensor to = poisoned(stream(), {2, 2}, DType::F32);
  stream().copy(to, from);
  stream().zero(from.rows(1, 3));
  EXPECT_THAT(read_back<float>(stream(), to), ::testing::ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(read_back<float>(stream(), from), ::testing::ElementsAre(1, 0, 0, 4));
}

TEST_F(StreamCpu, CopyRefusesOtherSizesAndDtypes) {
  const Tensor four = zeros(stream(), {4}, DType::F32);
  EXPECT_THAT([&] { stream().copy(four, zeros(stream(), {5}, DType::F32)); },
              ThrowsMessage<Error>(HasSubstr("copy of [5] to [4]")));
  EXPECT_THROW(stream().copy(four, zeros(stream(), {4}, DType::I32)), Error);
  EXPECT_THAT([&] { stream().copy(four, Tensor()); },
              ThrowsMessage<Error>(HasSubstr("stream 'test' cannot reach these tensors")));
  EXPECT_THAT([&] { stream().zero(Tensor()); },
              ThrowsMessage<Error>(HasSubstr("stream 'test' cannot reach this tensor")));
}

TEST_F(StreamCpu, HostEventCallsBackOnceReady) {
  HostEvent event;
  int num_calls = 0;
  event.on_ready([&] { ++num_calls; });
  EXPECT_EQ(num_calls, 0);
  event.set(nullptr);
  EXPECT_EQ(num_calls, 1);
  event.on_ready([&] { ++num_calls; });
  EXPECT_EQ(num_calls, 2);
}

TEST_F(StreamCpu, StampsTellTheTimeOfTheWorkBetween) {
  const auto begin = stream().stamp();
  enqueue_cpu(stream(), [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  const auto middle = stream().stamp(), end = stream().stamp();
  EXPECT_GE(middle->seconds_since(*begin), 0.02);
  EXPECT_GE(end->seconds_since(*begin), middle->seconds_since(*begin));
  EXPECT_EQ(begin->seconds_since(*begin), 0);
}

TEST_F(StreamCpu, EnqueueCpuRefusesOtherStreams) {
  class Foreign final : public Stream {
   public:
    explicit Foreign(Device& device) : Stream(device, "foreign") {}
    Event record() override { return {}; }
    std::shared_ptr<const TimeStamp> stamp() override { return nullptr; }
    void wait(const Event&) override {}
    void synchronize() override {}
    void zero(const Tensor&) override {}
    void copy(const Tensor&, const Tensor&) override {}
    void hold(const Tensor&) override {}
    bool is_captured() const override { return false; }
  } foreign(device());
  EXPECT_THAT([&] { enqueue_cpu(foreign, [] {}); },
              ThrowsMessage<Error>(HasSubstr("stream 'foreign' is not a CPU stream")));
}

}  // namespace
}  // namespace ferry::testing
