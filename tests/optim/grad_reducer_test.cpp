#include "optim/grad_reducer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "optim/shards.h"
#include "tests/optim/mesh_rank.h"
#include "tests/support/run_ranks.h"
#include "tests/support/watched_group.h"

namespace ferry::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Small integers, so that sums are exact: what member `member` of the parameter's group adds.
std::vector<double> addend(const Parameter& parameter, int member) {
  std::vector<double> values(static_cast<size_t>(parameter.global_shape().numel()));
  const int64_t shift = static_cast<int64_t>(hash_of(parameter.name) % 11);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<double>((7 * static_cast<int64_t>(i) + shift) % 11 - 4) * (member + 1);
  return values;
}

struct Mode {
  bool distributed;
  bool overlap;
};
constexpr Mode kModes[] = {{false, false}, {false, true}, {true, false}, {true, true}};

class ReducingRank : public MeshRank {
 public:
  ReducingRank(const Layout& layout, Group& world, const Mode& mode)
      : MeshRank(Mesh(layout.world, layout.sizes), world),
        buckets_(stream(), blocks(), axes(), mode.distributed),
        reducer_(buckets_, axes(), device(), mode.overlap),
        mode_(mode) {}

  void begin_step() { buckets_.zero(stream()); }
  // The rank's share of the gradients `times` times, the later block first.
  void backward(int times, bool last) {
    Pass pass = this->pass();
    reducer_.set_last(last);
    for (const int block : {1, 0}) {
      for (const Parameter* p : blocks()[static_cast<size_t>(block)])
        for (int i = 0; i < times; ++i) add_gradient(*p, addend(*p, axes().of(p->axis).rank()));
      reducer_.after_backward(pass, block);
    }
  }
  GradReducer& reducer() { return reducer_; }

  // Every row that this rank owns, or every row, holds `times` times everybody's sum.
  void expect_sums(int times) {
    for (const Parameter* p : parameters()) {
      const Group& group = axes().of(p->axis);
      std::vector<double> want(addend(*p, 0).size());
      for (int member = 0; member < group.size(); ++member)
        for (size_t i = 0; i < want.size(); ++i) want[i] += times * addend(*p, member)[i];
      want = part_of(*p, want);
      std::vector<double> have = read_back_as_double(stream(), p->grad);
      if (mode_.distributed) {
        const RowRange own = owned_rows(*p, group.rank(), group.size());
        const int64_t columns = matrix_columns(p->shape);
        want = {want.begin() + own.begin * columns, want.begin() + own.end * columns};
        have = {have.begin() + own.begin * columns, have.begin() + own.end * columns};
      }
      EXPECT_EQ(have, want) << p->name << " of rank " << group.rank() << " of " << group.size();
    }
  }

 private:
  GradientBuckets buckets_;
  GradReducer reducer_;
  Mode mode_;
};

TEST(GradReducer, SumsOverTheGroupOfEachAxis) {
  for (const Layout& layout : layouts()) {
    for (const Mode& mode : kModes) {
      run_ranks(layout.world, [&](Group& world, Control&) {
        SCOPED_TRACE(concat(layout, mode.distributed ? ", distributed" : "",
                            mode.overlap ? ", overlap" : ""));
        ReducingRank rank(layout, world, mode);
        for (int step = 0; step < 2; ++step) {
          rank.begin_step();
          rank.backward(1, true);
          rank.reducer().finish(rank.stream());
          rank.expect_sums(1);
        }
      });
    }
  }
}

// Gradients of the earlier micro-batches go out once, with the last.
TEST(GradReducer, ReducesOnlyInTheLastMicroBatchOfAStep) {
  for (const Mode& mode : kModes) {
    run_ranks(2, [&](Group& world, Control&) {
      ReducingRank rank({2, {}}, world, mode);
      for (int step = 0; step < 3; ++step) {
        rank.begin_step();
        rank.backward(1, false);
        rank.backward(3, false);
        rank.backward(1, true);
        rank.reducer().finish(rank.stream());
        rank.expect_sums(5);
      }
    });
  }
}

// Finish makes up for blocks whose last backward did not say so.
TEST(GradReducer, FinishReducesWhatIsLeft) {
  for (const Mode& mode : kModes) {
    run_ranks(2, [&](Group& world, Control&) {
      ReducingRank rank({2, {}}, world, mode);
      for (int step = 0; step < 2; ++step) {
        rank.begin_step();
        rank.backward(2, false);
        rank.reducer().finish(rank.stream());
        rank.expect_sums(2);
      }
    });
  }
}

TEST(GradReducer, RefusesASecondLastBackwardOfABlock) {
  run_ranks(2, [&](Group& world, Control&) {
    ReducingRank rank({2, {}}, world, {false, true});
    rank.begin_step();
    rank.backward(1, true);
    Pass pass = rank.pass();
    rank.reducer().set_last(true);
    EXPECT_THAT([&] { rank.reducer().after_backward(pass, 1); },
                ThrowsMessage<Error>(HasSubstr("block 1 has two last backwards in one step")));
    rank.reducer().finish(rank.stream());
  });
}

// One rank with two chunks of one block each, and a tied parameter in one of them.
class ChunkedRank {
 public:
  ChunkedRank(Group& dense, Group& tied, int tied_block, bool overlap) {
    std::vector<std::vector<Parameter*>> blocks(2);
    for (const int block : {0, 1}) {
      weights_[block].name = concat("weight ", block);
      blocks[static_cast<size_t>(block)].push_back(&weights_[block]);
    }
    tied_.axis = ReduceAxis::Tied;
    blocks[static_cast<size_t>(tied_block)].push_back(&tied_);
    for (Parameter* p : {&weights_[0], &weights_[1], &tied_}) p->shape = {3};
    const auto watch = [this](const std::string& axis) {
      return [this, axis](Stream&, const std::string& call, const Tensor& out) {
        const bool of_block_0 = out.storage() == weights_[0].grad.storage();
        calls.push_back(axis == "tied" ? call + " tied" : concat(call, " ", of_block_0 ? 0 : 1));
      };
    };
    dense_ = std::make_unique<WatchedGroup>(dense, watch("dense"));
    tied_group_ = std::make_unique<WatchedGroup>(tied, watch("tied"));
    const ReduceGroups groups{dense_.get(), dense_.get(), tied_group_.get(), dense_.get()};
    buckets_ = std::make_unique<GradientBuckets>(stream(), blocks, groups, false);
    reducer_ = std::make_unique<GradReducer>(*buckets_, groups, *device_, overlap);
    buckets_->zero(stream());
  }

  Stream& stream() { return *stream_; }
  void backward(int block, bool last) {
    Pass pass(stream(), tape_, batch_, totals_, {}, true);
    reducer_->set_last(last);
    const Tensor one = Tensor::empty(stream(), "one", {3}, DType::F32);
    fill(stream(), one, 1);
    accumulate(stream(), weights_[block].grad, one);
    accumulate(stream(), tied_.grad, one);
    reducer_->after_backward(pass, block);
  }
  void finish() { reducer_->finish(stream()); }
  bool knows_final(int block, ReduceAxis axis) {
    return reducer_->final_event(stream(), block, axis).has_value();
  }
  // The dense gradient of the block as it is at its final_event.
  std::vector<double> final_gradient(int block) {
    const std::unique_ptr<Stream> reader = device_->make_stream("reader");
    reader->wait(reducer_->final_event(stream(), block, ReduceAxis::Dense).value());
    return read_back_as_double(*reader, weights_[block].grad);
  }
  std::vector<double> gradient(int block) {
    return read_back_as_double(stream(), weights_[block].grad);
  }
  std::vector<double> tied_gradient() { return read_back_as_double(stream(), tied_.grad); }

  std::vector<std::string> calls;  // of collectives, in order

 private:
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Stream> stream_ = device_->make_stream("compute");
  Parameter weights_[2], tied_;
  std::unique_ptr<Group> dense_, tied_group_;
  std::unique_ptr<GradientBuckets> buckets_;
  std::unique_ptr<GradReducer> reducer_;
  Tape tape_;
  Batch batch_;
  StepTotals totals_;
};

TEST(GradReducer, TakesTheLastBackwardOfEachChunk) {
  run_ranks(2, [&](Group& world, Control&) {
    ChunkedRank rank(world, world, 0, true);
    rank.backward(1, false);
    rank.backward(0, false);
    rank.backward(1, true);
    EXPECT_THAT(rank.calls, ElementsAre("all_reduce 1"));
    rank.backward(0, false);  // block 1 is done, block 0 is not
    rank.backward(0, true);
    EXPECT_THAT(rank.calls, ElementsAre("all_reduce 1", "all_reduce 0"));
    rank.finish();
    EXPECT_THAT(rank.calls, ElementsAre("all_reduce 1", "all_reduce 0", "all_reduce tied"));
    EXPECT_EQ(rank.gradient(0), std::vector<double>(3, 6));
    EXPECT_EQ(rank.gradient(1), std::vector<double>(3, 4));
    EXPECT_EQ(rank.tied_gradient(), std::vector<double>(3, 10));
  });
}

TEST(GradReducer, TellsWhenGradientsAreFinal) {
  run_ranks(2, [&](Group& world, Control&) {
    for (const bool overlap : {false, true}) {
      ChunkedRank rank(world, world, 0, overlap);
      rank.backward(1, false);
      EXPECT_FALSE(rank.knows_final(1, ReduceAxis::Dense)) << "before the last micro-batch";
      rank.backward(1, true);
      EXPECT_EQ(rank.knows_final(1, ReduceAxis::Dense), overlap);
      EXPECT_FALSE(rank.knows_final(0, ReduceAxis::Dense)) << "before its backward";
      if (overlap) {
        EXPECT_EQ(rank.final_gradient(1), std::vector<double>(3, 4));
      }
      rank.backward(0, true);
      EXPECT_FALSE(rank.knows_final(0, ReduceAxis::Tied)) << "goes out at the end";
      if (overlap) {
        EXPECT_EQ(rank.final_gradient(0), std::vector<double>(3, 2));
      }
      rank.finish();
      EXPECT_FALSE(rank.knows_final(1, ReduceAxis::Dense)) << "of the next step";
    }
  });
}

TEST(GradReducer, WhatIsNotReducedIsFinalAfterItsBackward) {
  const std::unique_ptr<Group> solo = make_solo_group();
  for (const bool overlap : {false, true}) {
    ChunkedRank rank(*solo, *solo, 0, overlap);
    rank.backward(1, false);
    EXPECT_FALSE(rank.knows_final(1, ReduceAxis::Dense));
    rank.backward(1, true);
    EXPECT_EQ(rank.final_gradient(1), std::vector<double>(3, 2));
    rank.finish();
  }
}

// Two stages of two ranks; the second has the tied weight at the beginning of its backward, and the
// first, which waits for the second's message, at the end.
TEST(GradReducer, TiedStagesMeetAtTheEnd) {
  for (const bool overlap : {false, true}) {
    run_ranks(4, [&](Group& world, Control&) {
      const int stage = world.rank() / 2;
      const std::unique_ptr<Group> dense = world.split(stage, "dp");
      const std::unique_ptr<Group> messages = world.split(world.rank() % 2, "pp");
      ChunkedRank rank(*dense, world, stage == 0 ? 0 : 1, overlap);
      const Tensor dx = zeros(rank.stream(), {2}, DType::F32);
      if (stage == 0) messages->receive(rank.stream(), dx, 1);
      rank.backward(1, true);
      rank.backward(0, true);
      if (stage == 1) messages->send(rank.stream(), dx, 0);
      rank.finish();
      EXPECT_THAT(rank.calls, ElementsAre("all_reduce 1", "all_reduce 0", "all_reduce tied"));
      EXPECT_EQ(rank.gradient(0), std::vector<double>(3, 2));
      EXPECT_EQ(rank.gradient(1), std::vector<double>(3, 2));
      EXPECT_EQ(rank.tied_gradient(), std::vector<double>(3, 8));
    });
  }
}

TEST(GradReducer, AGroupOfOneIsNotCalled) {
  const std::unique_ptr<Group> solo = make_solo_group();
  ChunkedRank rank(*solo, *solo, 0, true);
  rank.backward(1, true);
  rank.backward(0, true);
  rank.finish();
  EXPECT_TRUE(rank.calls.empty());
  EXPECT_EQ(rank.gradient(1), std::vector<double>(3, 1));
}

}  // namespace
}  // namespace ferry::testing
