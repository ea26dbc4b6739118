#include "app/parallel_model.h"

#include <gtest/gtest.h>

#include <set>

#include "app/data_spec.h"
#include "tests/app/small_run.h"
#include "tests/support/devices.h"
#include "tests/support/run_ranks.h"

namespace ferry {
namespace {

// How often hooks were called, by block.
class Counts final : public BlockHooks {
 public:
  void before_forward(Pass&, int block_idx) override { ++forward[block_idx]; }
  void after_backward(Pass&, int block_idx) override { ++backward[block_idx]; }
  std::map<int, int> forward, backward;
};

// A rank with its model and zero gradients, and the data.
struct Rank {
  Rank(const RunConfig& config, Group& world)
      : groups(Mesh(world.size(), mesh_sizes(config.parallel)), world),
        model(config, *stream, groups) {
    for (Parameter* p : model.parameters()) {
      p->grad = Tensor::empty(*stream, "gradients", p->shape, accumulate_dtype(p->dtype));
      stream->zero(p->grad);
    }
    loader = std::make_unique<Loader>(open_dataset(training_data_spec(config, world.size())),
                                      loader_config(config, groups));
  }
  ParallelModel::Input run(int64_t num_micro, bool training,
                           std::function<void(int, int)> before_backward = {}) {
    BatchFeed feed(*stream, *loader);
    const ParallelModel::Input input =
        model.run(num_micro, feed, hooks, {totals, {}, 0, training}, std::move(before_backward));
    stream->synchronize();
    return input;
  }

  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Stream> stream = device->make_stream("test");
  MeshGroups groups;
  ParallelModel model;
  std::unique_ptr<Loader> loader;
  Counts hooks;
  StepTotals totals;
};

class ParallelModelTest : public ::testing::Test {
 protected:
  testing::TempDir dir_;
};

TEST_F(ParallelModelTest, OneRankRunsAMicroBatchAfterTheOther) {
  const RunConfig config = testing::small_run(dir_);
  const auto solo = make_solo_group();
  Rank rank(config, *solo);
  std::vector<int> order;
  const ParallelModel::Input input =
      rank.run(3, true, [&](int chunk, int micro) { order.push_back(10 * chunk + micro); });
  EXPECT_EQ(input.num_loss_tokens, 3 * 2 * 16);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
  const std::map<int, int> each_block_three_times = {{0, 3}, {1, 3}, {2, 3}, {3, 3}};
  EXPECT_EQ(rank.hooks.forward, each_block_three_times);
  EXPECT_EQ(rank.hooks.backward, each_block_three_times);
  EXPECT_EQ(rank.model.parameters().size(), parameter_names(config.gpt()).size());
  EXPECT_EQ(rank.model.parameters_by_block().size(), 4u);
}

// More of them than schedules are kept.
TEST_F(ParallelModelTest, RunsOfManyLengthsTakeTurns) {
  const RunConfig config = testing::parallel_run(dir_, {"parallel.pipeline=2"}, 2);
  testing::run_ranks(2, [&](Group& world, Control&) {
    Rank rank(config, world);
    for (int round = 0; round < 2; ++round)
      for (const int num_micro : {1, 2, 3})
        for (const bool training : {true, false}) {
          rank.hooks = {};
          rank.run(num_micro, training);
          EXPECT_EQ(rank.hooks.forward[0], num_micro);
          EXPECT_EQ(rank.hooks.backward[0], training ? num_micro : 0);
        }
  });
}

TEST_F(ParallelModelTest, EvaluationGoesForwardAlone) {
  const RunConfig config = testing::parallel_run(dir_, {"parallel.pipeline=2"}, 2);
  testing::run_ranks(2, [&](Group& world, Control&) {
    Rank rank(config, world);
    rank.run(4, false, [](int, int) { FAIL() << "backward"; });
    EXPECT_EQ(rank.hooks.forward.size(), 3u);
    EXPECT_TRUE(rank.hooks.backward.empty());
    EXPECT_EQ(rank.totals.all().contains("loss"), world.rank() == 1);
  });
}

// Blocks are numbered over all chunks of a rank, so that hooks of any chunk find their own.
TEST_F(ParallelModelTest, ChunksShareOneCountOfBlocks) {
  const RunConfig config =
      testing::parallel_run(dir_, {"parallel.pipeline=2", "parallel.virtual_stages=2"}, 2);
  testing::run_ranks(2, [&](Group& world, Control&) {
    Rank rank(config, world);
    std::map<int, int> last;  // micro-batch of each chunk
    rank.run(4, true, [&](int chunk, int micro) {
      EXPECT_EQ(micro, last.contains(chunk) ? last[chunk] + 1 : 0) << "in order";
      last[chunk] = micro;
    });
    EXPECT_EQ(last, (std::map<int, int>{{0, 3}, {1, 3}}));
    // Embedding and two layers, or two layers and the head.
    const std::map<int, int> each_block_four_times = {{0, 4}, {1, 4}, {2, 4}};
    EXPECT_EQ(rank.hooks.forward, each_block_four_times);
    EXPECT_EQ(rank.hooks.backward, each_block_four_times);

    const auto blocks = rank.model.parameters_by_block();
    ASSERT_EQ(blocks.size(), 3u);
    const auto first_name = [&](size_t block) { return blocks[block].front()->name; };
    EXPECT_EQ(first_name(0), world.rank() == 0 ? "embedding/weight" : "layers/1/attn_norm/weight");
    EXPECT_EQ(first_name(1),
              world.rank() == 0 ? "layers/0/attn_norm/weight" : "layers/3/attn_norm/weight");
    EXPECT_EQ(first_name(2), world.rank() == 0 ? "layers/2/attn_norm/weight" : "final_norm/weight");
    size_t count = 0;
    for (const auto& block : blocks) count += block.size();
    EXPECT_EQ(rank.model.parameters().size(), count);
  });
}

// The layers' counts of tokens by expert, wherever the layers are.
TEST_F(ParallelModelTest, EveryMoeLayerIsCountedBySomeRank) {
  const RunConfig config = testing::parallel_run(dir_, {"parallel.pipeline=4"}, 4);
  std::mutex mutex;
  std::multiset<int64_t> layers;
  testing::run_ranks(4, [&](Group& world, Control&) {
    Rank rank(config, world);
    rank.run(4, true);
    for (const Gpt::ExpertCounts& counts : rank.model.expert_counts()) {
      const auto tokens = read_back_as_double(*rank.stream, rank.totals.all().at(counts.total));
      double sum = 0;
      for (const double count : tokens) sum += count;
      EXPECT_EQ(sum, 4 * 2 * 16 * 2) << "two experts for every token";
      const std::lock_guard lock(mutex);
      layers.insert(counts.moe_layer);
    }
  });
  EXPECT_EQ(layers, (std::multiset<int64_t>{0, 1, 2}));
}

}  // namespace
}  // namespace ferry
