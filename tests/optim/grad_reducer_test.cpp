#include "optim/grad_reducer.h"

#include <gtest/gtest.h>

#include "core/ops/elementwise.h"
#include "tests/support/devices.h"
#include "tests/support/run_ranks.h"

namespace ferry::testing {
namespace {

// One rank with two blocks: dense parameters in both, experts in the second.
class Rank {
 public:
  Rank(Group& dense, Group& expert, bool overlap = true) {
    const auto describe = [](Parameter& p, const char* name, int64_t numel, ReduceAxis axis) {
      p.name = name;
      p.shape = {numel};
      p.axis = axis;
    };
    describe(first_, "first", 5, ReduceAxis::Dense);
    describe(second_, "second", 70, ReduceAxis::Dense);
    describe(experts_, "experts", 3, ReduceAxis::Expert);
    buckets_ = std::make_unique<GradientBuckets>(
        *stream_, std::vector<std::vector<Parameter*>>{{&first_}, {&second_, &experts_}});
    reducer_ = std::make_unique<GradReducer>(*buckets_, dense, expert, *device_, overlap);
  }

  // Adds 1 to all gradients in the place of a backward, the later block first.
  void micro_batch(double added, bool last) {
    Pass pass(*stream_, tape_, batch_, totals_, {}, true);
    if (last) reducer_->begin_last_micro_batch();
    for (const int block : {1, 0}) {
      for (Parameter* p : {&first_, &second_, &experts_}) {
        if ((p == &first_) != (block == 0)) continue;
        const Tensor more = Tensor::empty(*stream_, "more", p->shape, DType::F32);
        fill(*stream_, more, added);
        accumulate(*stream_, p->grad, more);
      }
      reducer_->after_backward(pass, block);
    }
  }
  void begin_step() { buckets_->zero(*stream_); }
  void finish() { reducer_->finish(*stream_); }

  void expect(double dense, double expert) {
    for (const auto& [p, want] :
         {std::pair(&first_, dense), {&second_, dense}, {&experts_, expert}})
      EXPECT_EQ(read_back_as_double(*stream_, p->grad),
                std::vector<double>(static_cast<size_t>(p->shape.numel()), want))
          << p->name;
  }

 private:
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Stream> stream_ = device_->make_stream("compute");
  Parameter first_, second_, experts_;
  std::unique_ptr<GradientBuckets> buckets_;
  std::unique_ptr<GradReducer> reducer_;
  Tape tape_;
  Batch batch_;
  StepTotals totals_;
};

TEST(GradReducer, SumsOverTheGroupOfEachAxis) {
  for (const auto& [size, overlap] : {std::pair(1, true), {2, true}, {4, true}, {4, false}}) {
    run_ranks(size, [&, size = size, overlap = overlap](Group& world, Control&) {
      // Experts have copies on every second rank, as with expert parallelism over two ranks.
      const std::unique_ptr<Group> expert = world.split(world.rank() % 2, "edp");
      Rank rank(world, *expert, overlap);
      rank.begin_step();
      rank.micro_batch(world.rank() + 1, true);
      rank.finish();
      double dense = 0, of_experts = 0;
      for (int r = 0; r < size; ++r) {
        dense += r + 1;
        if (r % 2 == world.rank() % 2) of_experts += r + 1;
      }
      rank.expect(dense, of_experts);
    });
  }
}

// Gradients of the earlier micro-batches go out once, with the last.
TEST(GradReducer, ReducesOnlyInTheLastMicroBatchOfAStep) {
  run_ranks(2, [&](Group& world, Control&) {
    Rank rank(world, world);
    for (int step = 0; step < 3; ++step) {
      rank.begin_step();
      rank.micro_batch(world.rank() + 1, false);
      rank.micro_batch(world.rank() + 1, false);
      rank.expect(2 * (world.rank() + 1), 2 * (world.rank() + 1));
      rank.micro_batch(world.rank() + 1, true);
      rank.finish();
      rank.expect(9, 9);
    }
  });
}

TEST(GradReducer, FinishEndsTheStep) {
  run_ranks(2, [&](Group& world, Control&) {
    Rank rank(world, world);
    rank.begin_step();
    rank.micro_batch(1, true);
    rank.finish();
    rank.micro_batch(1, false);
    rank.finish();
    rank.expect(3, 3);
  });
}

TEST(GradReducer, AGroupOfOneChangesNothing) {
  const std::unique_ptr<Group> solo = make_solo_group();
  Rank rank(*solo, *solo);
  rank.begin_step();
  rank.micro_batch(2, true);
  rank.finish();
  rank.expect(2, 2);
}

}  // namespace
}  // namespace ferry::testing
