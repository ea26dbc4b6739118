// The distributed optimizer as a whole: reduction, norm, update and gather together, against the
// same without it.

#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "optim/grad_reducer.h"
#include "optim/optimizer.h"
#include "optim/param_gather.h"
#include "optim/shards.h"
#include "tests/optim/mesh_rank.h"
#include "tests/support/run_ranks.h"

namespace ferry::testing {
namespace {

struct Mode {
  bool distributed = false;
  bool overlap_reduce = false;
  bool overlap_gather = false;
};
constexpr Mode kModes[] = {
    {false, false, false}, {false, true, false}, {true, false, false}, {true, true, true}};

std::string name_of(const Mode& mode) {
  return concat(mode.distributed ? ", distributed" : "", mode.overlap_reduce ? ", reduce" : "",
                mode.overlap_gather ? ", gather" : "");
}

// What a trainer does.
class TrainingRank : public MeshRank {
 public:
  TrainingRank(const Layout& layout, Group& world, DType dtype, const Mode& mode)
      : MeshRank(Mesh(layout.world, layout.sizes), world, dtype),
        mode_(mode),
        world_(world),
        buckets_(stream(), blocks(), axes(), mode.distributed),
        reducer_(buckets_, axes(), device(), mode.overlap_reduce),
        gather_(blocks(), axes(), device(), mode.overlap_gather),
        shards_(make_shards(parameters(), axes())),
        updated_(mode.distributed ? pointers(shards_) : parameters()),
        store_(stream(), updated_, *rule_),
        optimizer_(stream(), pointers(shards_), *rule_, store_) {}

  // Gradients: random numbers for each member of a group, and the values themselves, so that a
  // stale value shows. Returns the norm.
  double step(int64_t number) {
    buckets_.zero(stream());
    for (const int micro_batch : {0, 1}) {
      Pass pass = this->pass();
      for (const int block : {0, 1}) gather_.before_forward(pass, block);
      reducer_.set_last(micro_batch == 1);
      for (const int block : {1, 0}) {
        for (const Parameter* p : blocks()[static_cast<size_t>(block)]) {
          const auto member = static_cast<uint64_t>(axes().of(p->axis).rank());
          const uint64_t seed = hash_of(p->name) + 8 * static_cast<uint64_t>(number) + member;
          add_gradient(*p, random_values(p->global_shape().numel(), seed));
          accumulate(stream(), p->grad, p->value);
        }
        reducer_.after_backward(pass, block);
      }
    }
    reducer_.finish(stream());
    const double norm = gradient_norm(over_world(optimizer_.sum_squares(stream())), 10);
    OptimizerSettings settings;
    settings.lr = 0.05;
    settings.clip_norm = 0.1;
    optimizer_.update(stream(), settings, number, 10, norm);
    if (mode_.distributed) gather_.start(stream(), store_);
    return norm;
  }

  void wait_all() { gather_.wait_all(stream()); }
  int64_t state_elements() {
    int64_t elements = 0;
    for (const Parameter* p : updated_) elements += store_.state(*p).moments[0].numel();
    return elements;
  }

 private:
  double over_world(double value) {
    const Tensor sum = tensor_of(stream(), {value}, {1}, DType::F64);
    world_.all_reduce(stream(), sum, ReduceOp::Sum);
    return read_back<double>(stream(), sum)[0];
  }

  Mode mode_;
  Group& world_;
  GradientBuckets buckets_;
  GradReducer reducer_;
  ParamGather gather_;
  std::vector<std::unique_ptr<Parameter>> shards_;
  std::vector<Parameter*> updated_;
  std::unique_ptr<UpdateRule> rule_ = make_adamw(0.9, 0.95, 1e-8);
  DeviceStateStore store_;
  Optimizer optimizer_;
};

// Norms of the steps and, for each rank, all values after them.
using Result = std::map<std::string, std::vector<double>>;

Result train(const Layout& layout, DType dtype, const Mode& mode) {
  Result result;
  std::mutex mutex;
  run_ranks(layout.world, [&](Group& world, Control&) {
    TrainingRank rank(layout, world, dtype, mode);
    std::vector<double> norms;
    for (int64_t step = 1; step <= 3; ++step) norms.push_back(rank.step(step));
    rank.wait_all();
    const std::string prefix = concat("rank ", world.rank(), " ");
    for (const Parameter* p : rank.parameters()) {
      const auto values = read_back_as_double(rank.stream(), p->value);
      std::lock_guard lock(mutex);
      result[prefix + p->name] = values;
    }
    std::lock_guard lock(mutex);
    result[prefix + "norms"] = norms;
  });
  return result;
}

TEST(Distributed, GivesTheBitsOfAFullUpdate) {
  for (const Layout& layout : layouts()) {
    for (const DType dtype : {DType::F32, DType::BF16, DType::F64}) {
      const Result want = train(layout, dtype, {});
      for (int rank = 0; rank < layout.world; ++rank)
        EXPECT_EQ(want.at(concat("rank ", rank, " norms")), want.at("rank 0 norms")) << layout;
      for (const Mode& mode : kModes) {
        const Result have = train(layout, dtype, mode);
        ASSERT_EQ(have.size(), want.size());
        for (const auto& [name, values] : want)
          EXPECT_EQ(have.at(name), values) << name << ", " << layout << name_of(mode);
      }
    }
  }
}

// Copies that no collective joins: tp ranks, and the two stages of a tied weight.
TEST(Distributed, CopiesStayEqual) {
  for (const Mode& mode : kModes) {
    const Result result = train({8, {.tensor = 2, .pipeline = 2, .expert = 2}}, DType::BF16, mode);
    for (const int rank : {1, 2, 3})
      EXPECT_EQ(result.at(concat("rank ", rank, " 0/copy")), result.at("rank 0 0/copy"));
    for (const int rank : {1, 2, 3, 4, 5, 6, 7})
      EXPECT_EQ(result.at(concat("rank ", rank, " tied")), result.at("rank 0 tied"));
  }
}

TEST(Distributed, StateIsOfOwnedRowsOnly) {
  for (const Layout& layout : layouts()) {
    int64_t elements[2] = {0, 0};
    std::mutex mutex;
    for (const bool distributed : {false, true}) {
      run_ranks(layout.world, [&](Group& world, Control&) {
        TrainingRank rank(layout, world, DType::F32, {.distributed = distributed});
        int64_t own = 0;
        for (const Parameter* p : rank.parameters()) {
          const Group& group = rank.axes().of(p->axis);
          // Each copy has its part of the state once the group shares it.
          own += distributed && group.rank() > 0 ? 0 : p->shape.numel();
        }
        std::lock_guard lock(mutex);
        elements[distributed] += rank.state_elements() - own;
      });
      EXPECT_EQ(elements[distributed], 0) << layout;
    }
  }
}

// Gradients that are small integers, so that sums of squares are exact.
TEST(Distributed, NormCountsEveryGradientOnce) {
  for (const Layout& layout : layouts()) {
    for (const bool distributed : {false, true}) {
      std::map<std::string, double> squares;  // of each tensor of the whole model
      double counted = 0;
      std::mutex mutex;
      run_ranks(layout.world, [&](Group& world, Control&) {
        MeshRank rank(Mesh(layout.world, layout.sizes), world);
        GradientBuckets buckets(rank.stream(), rank.blocks(), rank.axes(), distributed);
        GradReducer reducer(buckets, rank.axes(), rank.device(), false);
        buckets.zero(rank.stream());
        std::map<std::string, double> own;
        for (const Parameter* p : rank.parameters()) {
          std::vector<double> gradient(static_cast<size_t>(p->global_shape().numel()));
          double sum = 0;
          for (size_t i = 0; i < gradient.size(); ++i) {
            gradient[i] = static_cast<double>(i % 5 + hash_of(p->name) % 3);
            sum += gradient[i] * gradient[i];
          }
          rank.add_gradient(*p, gradient);
          const double members = rank.axes().of(p->axis).size();
          own[p->name] = sum * members * members;
        }
        reducer.finish(rank.stream());
        const auto shards = make_shards(rank.parameters(), rank.axes());
        const auto rule = make_adamw(0.9, 0.95, 1e-8);
        DeviceStateStore store(rank.stream(), pointers(shards), *rule);
        Optimizer optimizer(rank.stream(), pointers(shards), *rule, store);
        const double sum = optimizer.sum_squares(rank.stream());
        std::lock_guard lock(mutex);
        counted += sum;
        squares.merge(own);
      });
      double want = 0;
      for (const auto& [name, sum] : squares) want += sum;
      EXPECT_EQ(counted, want) << layout << (distributed ? ", distributed" : "");
    }
  }
}

// Updates of shards on every device, aligned or not, empty or not.
class ShardUpdate : public DeviceTest {};

TEST_P(ShardUpdate, HasTheBitsOfTheWhole) {
  const auto rule = make_adamw(0.9, 0.95, 1e-8);
  for (const int size : {1, 2, 3, 5, 8}) {
    std::vector<double> want;
    for (const bool sharded : {false, true}) {
      Parameter whole;
      whole.shape = {7, 9};
      whole.dtype = dtype();
      whole.value = random(whole.shape, 1);
      whole.grad = random_tensor(stream(), whole.shape, accumulate(), 2);
      ThreadWorld world(size);
      double squares = 0;
      for (int rank = 0; rank < (sharded ? size : 1); ++rank) {
        const std::unique_ptr<Group> group = world.group(rank);
        const auto shards = make_shards({&whole}, {.dense = group.get()});
        const auto updated = sharded ? pointers(shards) : std::vector<Parameter*>{&whole};
        DeviceStateStore store(stream(), updated, *rule);
        Optimizer optimizer(stream(), updated, *rule, store);
        squares += optimizer.sum_squares(stream());
        for (int64_t step = 1; step <= 2; ++step)
          optimizer.update(stream(), {.lr = 0.1}, step, 1, 2);
      }
      auto result = read_back_as_double(stream(), whole.value);
      if (!sharded) want = result;
      EXPECT_EQ(result, want) << size << " ranks";
      double all_squares = 0;
      for (const double g : read_back_as_double(stream(), whole.grad)) all_squares += g * g;
      EXPECT_NEAR(squares, all_squares, 1e-12 * all_squares) << size << " ranks";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ShardUpdate, device_cases(), case_name);

}  // namespace
}  // namespace ferry::testing
