// When the executor of one rank takes, waits for and lets go of the memory of messages.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "pipeline/executor.h"
#include "tests/pipeline/traced_device.h"

namespace ferry::testing {
namespace {

const MessageType kMessage{{2}, DType::F32};

// Passes that keep nothing.
class TracedWork final : public StageWork {
 public:
  TracedWork(Stream& compute, Trace& trace, const ScheduleShape& shape)
      : compute_(compute), trace_(trace), shape_(shape) {}
  Tensor forward(int chunk, int micro, const Tensor&) override {
    return pass({Action::Kind::Forward, chunk, micro});
  }
  Tensor backward(int chunk, int micro, const Tensor&) override {
    return pass({Action::Kind::Backward, chunk, micro});
  }
  /// Called in each pass, before it makes its output.
  std::function<void()> in_pass = [] {};
  /// The outputs so far, as long as somebody has them.
  std::vector<std::weak_ptr<Storage>> outputs;

 private:
  Tensor pass(const Action& action) {
    trace_.add(compute_.name(), action_text(action, shape_.num_chunks));
    in_pass();
    const Tensor output = Tensor::empty(compute_, "output", kMessage.shape, kMessage.dtype);
    outputs.push_back(output.storage());
    return output;
  }

  Stream& compute_;
  Trace& trace_;
  ScheduleShape shape_;
};

// One rank of a pipeline without the others.
struct LoneRank {
  LoneRank(const ScheduleShape& shape, int rank)
      : group(rank, shape.num_ranks, "pp", trace),
        links(group, device, shape.num_chunks),
        executor(links, *compute),
        work(*compute, trace, shape) {
    trace.clear();
  }
  Trace trace;
  TracedDevice device{trace};
  std::unique_ptr<Stream> compute = device.make_stream("compute");
  TracedGroup group;
  PipelineLinks links;
  Executor executor;
  TracedWork work;
};

// The message for B0 may be written to from the beginning of F1 on, and its receive is enqueued
// behind F1. When it has come, the other rank has used output 0. (The first stage sends no
// gradients, so outputs 2 and 3 are free at once.)
TEST(ExecutorMessages, AreTakenAndLetGoOfOnTheComputeStream) {
  const ScheduleShape shape{.num_ranks = 2, .num_micro = 2};
  LoneRank rank(shape, 0);
  rank.executor.run(proved_schedule(shape, 0), kMessage, rank.work);
  std::string text;
  for (const std::string& line : rank.trace.lines()) text += line + '\n';
  EXPECT_EQ(text, R"(compute: F0
compute: new output 0
pp activations 0>1: wait for compute's new output 0
pp activations 0>1: send output 0
compute: new pipeline messages 0
compute: F1
compute: new output 1
pp activations 0>1: wait for compute's new output 1
pp activations 0>1: send output 1
pp gradients 1>0: wait for compute's new pipeline messages 0
pp gradients 1>0: receive pipeline messages 0
compute: wait for pp gradients 1>0's receive pipeline messages 0
compute: free output 0
compute: new pipeline messages 1
compute: B0
compute: new output 2
pp gradients 1>0: wait for compute's new pipeline messages 1
pp gradients 1>0: receive pipeline messages 1
compute: free output 2
compute: free pipeline messages 0
compute: wait for pp gradients 1>0's receive pipeline messages 1
compute: free output 1
compute: B1
compute: new output 3
compute: free output 3
compute: free pipeline messages 1
compute: wait for pp activations 0>1's send output 1
)");
}

// Nothing comes back that tells, so the end of the run waits before the memory is free.
TEST(ExecutorMessages, OfTheLastActionsAreKeptUntilAllAreSent) {
  const ScheduleShape shape{.num_ranks = 2, .num_micro = 1};
  LoneRank rank(shape, 1);
  rank.executor.run(proved_schedule(shape, 1), kMessage, rank.work);
  const std::vector<std::string>& lines = rank.trace.lines();
  ASSERT_GE(lines.size(), 2u);
  EXPECT_EQ(lines[lines.size() - 2], "compute: wait for pp gradients 1>0's send output 1");
  EXPECT_EQ(lines.back(), "compute: free output 1");
}

TEST(ExecutorMessages, AreInMemoryAsLongAsTheScheduleSays) {
  for (const ScheduleShape& shape :
       {ScheduleShape{.num_ranks = 4, .num_micro = 9}, ScheduleShape{ScheduleKind::GPipe, 3, 2, 5},
        ScheduleShape{ScheduleKind::Interleaved, 2, 2, 4},
        ScheduleShape{ScheduleKind::Interleaved, 4, 3, 9, 5},
        ScheduleShape{ScheduleKind::ForwardOnly, 3, 1, 7},
        ScheduleShape{ScheduleKind::ForwardOnly, 3, 2, 7}})
    for (int r = 0; r < shape.num_ranks; ++r) {
      LoneRank rank(shape, r);
      const RankSchedule schedule = proved_schedule(shape, r);
      rank.work.in_pass = [&] {
        const auto& outputs = rank.work.outputs;
        for (size_t i = 0; i < outputs.size(); ++i)
          ASSERT_EQ(!outputs[i].expired(),
                    schedule.kept_until[i] > static_cast<int>(outputs.size()))
              << "rank " << r << ": output of action " << i << " in action " << outputs.size();
      };
      rank.executor.run(schedule, kMessage, rank.work);
      ASSERT_EQ(rank.work.outputs.size(), schedule.actions.size());
      int all = 0, received = 0, most_received = 0;
      for (const std::string& line : rank.trace.lines()) {
        if (line.starts_with("compute: new ")) ++all;
        if (line.starts_with("compute: free ")) --all;
        if (line.starts_with("compute: new pipeline messages")) ++received;
        if (line.starts_with("compute: free pipeline messages")) --received;
        most_received = std::max(most_received, received);
        EXPECT_FALSE(line.ends_with(": hold")) << line;
      }
      EXPECT_EQ(all, 0);
      EXPECT_LE(most_received, 2);
    }
}

}  // namespace
}  // namespace ferry::testing
