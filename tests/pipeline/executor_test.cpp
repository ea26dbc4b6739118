#include "pipeline/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <latch>
#include <memory>

#include "core/device.h"
#include "tests/pipeline/affine_work.h"
#include "tests/support/run_ranks.h"

namespace ferry::testing {
namespace {

using ::testing::HasSubstr;

// Each rank has a device and a stream of its own, as a process has.
struct Rank {
  Rank(Group& group, int num_chunks)
      : links(group, *device, num_chunks), executor(links, *compute) {}
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Stream> compute = device->make_stream("compute");
  PipelineLinks links;
  Executor executor;
};

struct Case {
  ScheduleKind kind;
  int num_ranks, num_chunks, num_micro, group = 0;
};

void PrintTo(const Case& c, std::ostream* out) {
  const char* names[] = {"gpipe", "1f1b", "interleaved", "evaluation"};
  *out << names[static_cast<int>(c.kind)] << "_ranks" << c.num_ranks << "_chunks" << c.num_chunks
       << "_micro" << c.num_micro << "_group" << c.group;
}

class Executors : public ::testing::TestWithParam<Case> {
 protected:
  ScheduleShape shape() const {
    const Case& c = GetParam();
    return {c.kind, c.num_ranks, c.num_chunks, c.num_micro, c.group};
  }
};

// To the last bit: the same passes in the same order of micro-batches.
TEST_P(Executors, ComputeWhatOneRankDoes) {
  const ScheduleShape shape = this->shape();
  const AffineResult expected =
      affine_reference(shape.num_ranks * shape.num_chunks, shape.num_micro);
  run_ranks(shape.num_ranks, [&](Group& group, Control&) {
    Rank rank(group, shape.num_chunks);
    const RankSchedule schedule = proved_schedule(shape, group.rank());
    for (const int max_delay_us : {0, 300}) {
      AffineWork work(*rank.compute, group.rank(), shape.num_ranks, shape.num_chunks, max_delay_us);
      rank.executor.run(schedule, kAffineMessage, work);
      rank.compute->synchronize();
      EXPECT_EQ(work.result(), part_of_rank(expected, group.rank(), shape.num_ranks));
      EXPECT_EQ(work.num_in_flight(), 0u);
    }
  });
}

// With every compute stream held up, all the hosts get to the end.
TEST_P(Executors, KeepNoHostWaiting) {
  const ScheduleShape shape = this->shape();
  std::latch all_enqueued(shape.num_ranks);
  run_ranks(shape.num_ranks, [&](Group& group, Control&) {
    Rank rank(group, shape.num_chunks);
    AffineWork work(*rank.compute, group.rank(), shape.num_ranks, shape.num_chunks, 0);
    enqueue_cpu(*rank.compute, [&] { all_enqueued.wait(); });
    rank.executor.run(proved_schedule(shape, group.rank()), kAffineMessage, work);
    all_enqueued.count_down();
    rank.compute->synchronize();
  });
}

std::string instance_name(const ::testing::TestParamInfo<Case>& info) {
  std::ostringstream name;
  PrintTo(info.param, &name);
  return name.str();
}

INSTANTIATE_TEST_SUITE_P(All, Executors,
                         ::testing::Values(Case{ScheduleKind::OneForwardOneBackward, 1, 1, 3},
                                           Case{ScheduleKind::OneForwardOneBackward, 2, 1, 1},
                                           Case{ScheduleKind::OneForwardOneBackward, 2, 1, 5},
                                           Case{ScheduleKind::OneForwardOneBackward, 3, 1, 7},
                                           Case{ScheduleKind::OneForwardOneBackward, 4, 1, 2},
                                           Case{ScheduleKind::OneForwardOneBackward, 4, 1, 9},
                                           Case{ScheduleKind::GPipe, 3, 1, 2},
                                           Case{ScheduleKind::GPipe, 4, 1, 6},
                                           Case{ScheduleKind::GPipe, 2, 3, 4},
                                           Case{ScheduleKind::Interleaved, 1, 3, 4},
                                           Case{ScheduleKind::Interleaved, 2, 2, 2},
                                           Case{ScheduleKind::Interleaved, 2, 4, 6},
                                           Case{ScheduleKind::Interleaved, 2, 2, 5, 3},
                                           Case{ScheduleKind::Interleaved, 3, 2, 6},
                                           Case{ScheduleKind::Interleaved, 4, 2, 9, 5}),
                         instance_name);

// Training and evaluation take turns on the same links, with messages of other sizes.
TEST(Executor, EvaluatesBetweenSteps) {
  const ScheduleShape training{ScheduleKind::Interleaved, 2, 2, 4};
  const ScheduleShape evaluation{ScheduleKind::ForwardOnly, 2, 2, 3};
  const AffineResult expected = affine_reference(4, 4);
  const AffineResult evaluated = affine_reference(4, 3);
  run_ranks(2, [&](Group& group, Control&) {
    Rank rank(group, 2);
    for (int round = 0; round < 2; ++round) {
      AffineWork steps(*rank.compute, group.rank(), 2, 2, 50);
      rank.executor.run(proved_schedule(training, group.rank()), kAffineMessage, steps);
      AffineWork passes(*rank.compute, group.rank(), 2, 2, 50);
      rank.executor.run(proved_schedule(evaluation, group.rank()), kAffineMessage, passes);
      rank.compute->synchronize();
      EXPECT_EQ(steps.result(), part_of_rank(expected, group.rank(), 2));
      EXPECT_EQ(passes.result().loss, group.rank() == 1 ? evaluated.loss : AffineResult().loss);
      EXPECT_EQ(passes.result().dweight, AffineResult().dweight);
    }
  });
}

// Passes of more tasks than the queue of a CPU stream holds, so that hosts do wait for their own
// compute streams, and by them for each other.
class LongWork final : public StageWork {
 public:
  LongWork(StageWork& work, Stream& compute) : work_(work), compute_(compute) {}
  Tensor forward(int chunk, int micro, const Tensor& x) override {
    return lengthen(work_.forward(chunk, micro, x));
  }
  Tensor backward(int chunk, int micro, const Tensor& dy) override {
    return lengthen(work_.backward(chunk, micro, dy));
  }

 private:
  Tensor lengthen(Tensor result) {
    for (int i = 0; i < 600; ++i) enqueue_cpu(compute_, [] {});
    return result;
  }
  StageWork& work_;
  Stream& compute_;
};

TEST(Executor, GetsAlongWithFullQueues) {
  const ScheduleShape shape{ScheduleKind::Interleaved, 3, 2, 6};
  const AffineResult expected = affine_reference(6, 6);
  run_ranks(3, [&](Group& group, Control&) {
    Rank rank(group, 2);
    AffineWork work(*rank.compute, group.rank(), 3, 2, 0);
    LongWork long_work(work, *rank.compute);
    rank.executor.run(proved_schedule(shape, group.rank()), kAffineMessage, long_work);
    rank.compute->synchronize();
    EXPECT_EQ(work.result(), part_of_rank(expected, group.rank(), 3));
  });
}

// A send is done when it is received, which here is not before the receiver's stream gets to it.
TEST(Executor, WorkAfterARunFollowsItsSends) {
  std::atomic<bool> received = false;
  run_ranks(2, [&](Group& group, Control&) {
    Rank rank(group, 1);
    AffineWork work(*rank.compute, group.rank(), 2, 1, 0);
    if (group.rank() == 1)
      enqueue_cpu(*rank.compute, [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        received = true;
      });
    const RankSchedule forward{{{Action::Kind::Forward, 0, 0}}, {1}};
    rank.executor.run(forward, kAffineMessage, work);
    if (group.rank() == 0) enqueue_cpu(*rank.compute, [&] { EXPECT_TRUE(received); });
    rank.compute->synchronize();
  });
}

// Work that returns something else than the next stage expects, or a list that does not fit.
class WrongWork final : public StageWork {
 public:
  explicit WrongWork(Tensor result) : result_(std::move(result)) {}
  Tensor forward(int, int, const Tensor&) override { return result_; }
  Tensor backward(int, int, const Tensor&) override { return result_; }

 private:
  Tensor result_;
};

class ExecutorMistakes : public ::testing::Test {
 protected:
  std::string mistake(const std::vector<Action>& actions, const Tensor& result) {
    WrongWork work(result);
    try {
      rank_.executor.run({actions, std::vector<int>(actions.size())}, kAffineMessage, work);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::Internal);
      return error.what();
    }
    return "";
  }
  Tensor tensor(const Shape& shape, DType dtype) {
    return Tensor::empty(*rank_.compute, "result", shape, dtype);
  }

 private:
  std::unique_ptr<Group> group_ = make_solo_group();
  Rank rank_{*group_, 2};
};

TEST_F(ExecutorMistakes, WrongMessagesAreNotSent) {
  const std::vector<Action> actions = {{Action::Kind::Forward, 0, 0},
                                       {Action::Kind::Forward, 1, 0}};
  EXPECT_THAT(mistake(actions, tensor({3, 3}, DType::F64)),
              HasSubstr("F0.0 returned [3, 3] f64, but the next stage expects [3, 2] f64"));
  EXPECT_THAT(mistake(actions, tensor({3, 2}, DType::F32)),
              HasSubstr("F0.0 returned [3, 2] f32, but the next stage expects [3, 2] f64"));
  EXPECT_THAT(mistake(actions, Tensor()), HasSubstr("F0.0 returned no tensor"));
  EXPECT_EQ(mistake(actions, tensor({3, 2}, DType::F64)), "");
}

TEST_F(ExecutorMistakes, ListsThatDoNotFit) {
  const Tensor result = tensor({3, 2}, DType::F64);
  EXPECT_THAT(mistake({{Action::Kind::Forward, 1, 0}}, result), HasSubstr("no message for F0.1"));
  EXPECT_THAT(mistake({{Action::Kind::Forward, 0, 0}}, result), HasSubstr("is left over"));
  EXPECT_THAT(mistake({{Action::Kind::Forward, 2, 0}}, result), HasSubstr("no chunk for F0.2"));
}

}  // namespace
}  // namespace ferry::testing
