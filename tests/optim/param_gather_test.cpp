#include "optim/param_gather.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "core/stream_cpu.h"
#include "optim/shards.h"
#include "tests/optim/mesh_rank.h"
#include "tests/support/run_ranks.h"
#include "tests/support/watched_group.h"

namespace ferry::testing {
namespace {

// A store whose updates are made at once, or later; it says who waits for which block.
class WatchedStore final : public StateStore {
 public:
  explicit WatchedStore(bool later = false) : later_(later) {}
  const ParameterState& state(const Parameter&) override { fail(ExitCode::Internal, "no state"); }
  void publish(Stream&, const Parameter&) override {}
  void update(Stream&, const UpdateRule&, const UpdateScalars&) override {}
  void wait_values(Stream& stream, int block) override {
    waits += concat(stream.name(), " for ", block, ", ");
  }
  void wait_all_values(Stream& stream) override { waits += concat(stream.name(), " for all, "); }
  bool updates_later() const override { return later_; }

  std::string waits;

 private:
  bool later_;
};

// What the ranks of a parameter's group agree on in round `round`.
std::vector<double> agreed(const Parameter& parameter, int round) {
  return random_values(parameter.global_shape().numel(),
                       hash_of(parameter.name) + static_cast<uint64_t>(round));
}

// Writes the agreed values to the rows that the rank owns and others to all others.
void update_owned(MeshRank& rank, int round) {
  for (Parameter* p : rank.parameters()) {
    const Group& group = rank.axes().of(p->axis);
    const RowRange own = owned_rows(*p, group.rank(), group.size());
    const int64_t columns = matrix_columns(p->shape);
    std::vector<double> values = MeshRank::part_of(*p, agreed(*p, round));
    for (int64_t i = 0; i < p->shape.numel(); ++i)
      if (i < own.begin * columns || i >= own.end * columns) values[static_cast<size_t>(i)] = -9;
    rank.stream().copy(p->value, tensor_of(rank.stream(), values, p->shape, p->dtype));
  }
}

// Values as forward sees them: copied on the stream of the pass, without any other wait.
std::vector<Tensor> forward(MeshRank& rank, ParamGather& gather) {
  std::vector<Tensor> seen;
  Pass pass = rank.pass();
  for (size_t block = 0; block < rank.blocks().size(); ++block) {
    gather.before_forward(pass, static_cast<int>(block));
    for (const Parameter* p : rank.blocks()[block]) {
      seen.push_back(Tensor::empty(rank.stream(), "seen", p->shape, p->dtype));
      rank.stream().copy(seen.back(), p->value);
    }
  }
  return seen;
}

void expect_agreed(MeshRank& rank, const std::vector<Tensor>& seen, int round) {
  size_t i = 0;
  for (const auto& block : rank.blocks()) {
    for (const Parameter* p : block) {
      const Tensor want =
          tensor_of(rank.stream(), MeshRank::part_of(*p, agreed(*p, round)), p->shape, p->dtype);
      EXPECT_EQ(read_back_as_double(rank.stream(), seen[i++]),
                read_back_as_double(rank.stream(), want))
          << p->name << ", round " << round;
    }
  }
}

TEST(ParamGather, BringsTheRowsOfAllOwners) {
  for (const Layout& layout : layouts()) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
      for (const bool overlap : {false, true}) {
        run_ranks(layout.world, [&](Group& world, Control&) {
          SCOPED_TRACE(concat(layout, overlap ? ", overlap" : ""));
          MeshRank rank(Mesh(layout.world, layout.sizes), world, dtype);
          ParamGather gather(rank.blocks(), rank.axes(), rank.device(), overlap);
          WatchedStore store;
          for (int round = 0; round < 3; ++round) {
            update_owned(rank, round);
            gather.start(rank.stream(), store);
            for (int micro_batch = 0; micro_batch < 2; ++micro_batch)
              expect_agreed(rank, forward(rank, gather), round);
          }
        });
      }
    }
  }
}

TEST(ParamGather, WaitAllIsForReadersOnAnyStream) {
  for (const bool overlap : {false, true}) {
    run_ranks(2, [&](Group& world, Control&) {
      MeshRank rank(Mesh(2, {}), world);
      ParamGather gather(rank.blocks(), rank.axes(), rank.device(), overlap);
      const std::unique_ptr<Stream> reader = rank.device().make_stream("reader");
      gather.wait_all(*reader);  // nothing was started
      update_owned(rank, 0);
      WatchedStore store;
      gather.start(rank.stream(), store);
      for (int time = 0; time < 2; ++time) {
        gather.wait_all(*reader);
        for (const Parameter* p : rank.parameters())
          EXPECT_EQ(
              read_back_as_double(*reader, p->value),
              read_back_as_double(*reader, tensor_of(*reader, agreed(*p, 0), p->shape, p->dtype)));
      }
      expect_agreed(rank, forward(rank, gather), 0);
    });
  }
}

// One rank with a dense weight in each of two blocks, and a tied one in the second. Gathers of the
// weight of block 1 wait until open() is called.
class GatedRank {
 public:
  GatedRank(Group& group, bool overlap, bool later = false)
      : store(later),
        watched_(group, [this](Stream& stream, const std::string&, const Tensor& out) {
          for (const Parameter& p : parameters_)
            if (p.value.defined() && p.value.storage() == out.storage()) calls += p.name + " ";
          if (out.storage() == parameters_[1].value.storage())
            enqueue_cpu(stream, [gate = gate_.get_future().share()] { gate.wait(); });
        }) {
    const char* names[] = {"first", "second", "tied"};
    for (int i = 0; i < 3; ++i) {
      Parameter& p = parameters_[i];
      p.name = names[i];
      p.shape = {2 * group.size()};
      p.value = tensor_of(*stream_, std::vector<double>(2 * static_cast<size_t>(group.size()), 0),
                          p.shape, DType::F32);
      fill(*stream_, p.value.rows(2 * group.rank(), 2 * group.rank() + 2), 1);
    }
    parameters_[2].axis = ReduceAxis::Tied;
    gather_ = std::make_unique<ParamGather>(
        std::vector<std::vector<Parameter*>>{{&parameters_[0]}, {&parameters_[1], &parameters_[2]}},
        ReduceGroups{&watched_, &watched_, &watched_, &watched_}, *device_, overlap);
  }

  void start() { gather_->start(*stream_, store); }
  void open() { gate_.set_value(); }
  Event read(int block, Tensor& seen) {
    Pass pass(*stream_, tape_, batch_, totals_, {}, true);
    gather_->before_forward(pass, block);
    seen = Tensor::empty(*stream_, "seen", parameters_[block].shape, DType::F32);
    stream_->copy(seen, parameters_[block].value);
    return stream_->record();
  }
  std::vector<double> elements(const Tensor& tensor) {
    return read_back_as_double(*stream_, tensor);
  }

  std::string calls;  // names of what was gathered, in order
  WatchedStore store;

 private:
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Stream> stream_ = device_->make_stream("compute");
  Parameter parameters_[3];
  WatchedGroup watched_;
  Tape tape_;
  Batch batch_;
  StepTotals totals_;
  std::unique_ptr<ParamGather> gather_;
  std::promise<void> gate_;  // last: a test that fails early opens it
};

bool becomes_ready(const Event& event, int milliseconds) {
  for (int i = 0; i < milliseconds && !event.ready(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return event.ready();
}

TEST(ParamGather, WithOverlapABlockWaitsForItsOwnValuesOnly) {
  run_ranks(2, [&](Group& world, Control&) {
    GatedRank rank(world, true);
    rank.start();
    Tensor first, second;
    const Event read_first = rank.read(0, first);
    EXPECT_TRUE(becomes_ready(read_first, 10000)) << "block 0 waits for block 1";
    const Event read_second = rank.read(1, second);
    EXPECT_FALSE(becomes_ready(read_second, 20)) << "block 1 did not wait";
    rank.open();
    EXPECT_EQ(rank.elements(first), std::vector<double>(4, 1));
    EXPECT_EQ(rank.elements(second), std::vector<double>(4, 1));
  });
}

TEST(ParamGather, WithoutOverlapTheFirstBlockWaitsForEverything) {
  run_ranks(2, [&](Group& world, Control&) {
    GatedRank rank(world, false);
    rank.start();
    Tensor first;
    const Event read = rank.read(0, first);
    EXPECT_FALSE(becomes_ready(read, 20)) << "block 0 did not wait";
    rank.open();
    EXPECT_EQ(rank.elements(first), std::vector<double>(4, 1));
  });
}

TEST(ParamGather, TiedParametersComeFirst) {
  run_ranks(2, [&](Group& world, Control&) {
    GatedRank rank(world, true);
    rank.open();
    rank.start();
    EXPECT_EQ(rank.calls, "tied first second ");
  });
}

// Values of a store that updates later may not be there yet: the gathers of a block, tied weights
// of all blocks apart, are enqueued when that block is needed, behind its own values.
TEST(ParamGather, ValuesThatComeLaterAreGatheredWhenTheirBlockIsNeeded) {
  run_ranks(2, [&](Group& world, Control&) {
    GatedRank rank(world, /*overlap=*/true, /*later=*/true);
    rank.open();
    rank.start();
    EXPECT_EQ(rank.calls, "");
    EXPECT_EQ(rank.store.waits, "");
    Tensor seen;
    rank.read(0, seen);
    EXPECT_EQ(rank.calls, "tied first ");
    EXPECT_EQ(rank.store.waits, "parameter gather for 1, parameter gather for 0, compute for 0, ");
    rank.read(0, seen);  // the next micro-batch
    EXPECT_EQ(rank.calls, "tied first ");
    rank.read(1, seen);
    EXPECT_EQ(rank.calls, "tied first second ");
    EXPECT_EQ(rank.elements(seen), std::vector<double>(4, 1));
    EXPECT_TRUE(rank.store.waits.ends_with("parameter gather for 1, compute for 1, "))
        << rank.store.waits;
  });
}

TEST(ParamGather, WithoutOverlapValuesThatComeLaterAreGatheredAtOnce) {
  run_ranks(2, [&](Group& world, Control&) {
    GatedRank rank(world, /*overlap=*/false, /*later=*/true);
    rank.open();
    rank.start();
    EXPECT_EQ(rank.calls, "tied first second ");
    EXPECT_TRUE(rank.store.waits.ends_with("compute for all, ")) << rank.store.waits;
    Tensor first;
    rank.read(0, first);
    EXPECT_EQ(rank.elements(first), std::vector<double>(4, 1));
  });
}

TEST(ParamGather, AGroupOfOneIsNotCalled) {
  const std::unique_ptr<Group> solo = make_solo_group();
  GatedRank rank(*solo, false);
  rank.start();
  Tensor second;
  rank.read(1, second).wait_host();
  EXPECT_EQ(rank.calls, "");
  EXPECT_TRUE(rank.store.waits.ends_with("compute for 1, ")) << rank.store.waits;
  EXPECT_EQ(rank.elements(second), std::vector<double>(2, 1));
}

}  // namespace
}  // namespace ferry::testing
