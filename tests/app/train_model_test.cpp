#include "app/train_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "app/batch_feed.h"
#include "app/data_spec.h"
#include "app/evaluation.h"
#include "tests/app/small_run.h"
#include "tests/support/devices.h"
#include "tests/support/run_ranks.h"

namespace ferry {
namespace {

struct Trained {
  std::vector<double> losses, norms, rates;
  std::vector<float> weights;  // all, in the order of parameters()
};

// `steps` steps of the small run on this rank of the group.
Trained train(const RunConfig& config, Group& world, int steps) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("test");
  const MeshGroups groups(Mesh(world.size(), {}), world);
  TrainModel model(config, *stream, groups);
  LoaderConfig loader_config;
  loader_config.micro = config.batch.micro;
  loader_config.global = config.batch.global;
  loader_config.dp_rank = world.rank();
  loader_config.dp_size = world.size();
  Loader loader(open_dataset(training_data_spec(config, world.size())), loader_config);
  BatchFeed feed(*stream, loader);
  const int64_t num_micro = config.num_microbatches(world.size());
  const auto tokens = static_cast<double>(config.batch.global * config.model.seq);

  Trained result;
  for (int step = 1; step <= steps; ++step) {
    const int64_t first = loader.consumed_samples();
    model.begin_step();
    for (int64_t micro = 0; micro < num_micro; ++micro)
      model.micro_batch(feed.next(first), step, micro + 1 == num_micro);
    model.finish_backward();
    result.losses.push_back(read_back_as_double(*stream, model.totals().all().at("loss"))[0]);
    result.norms.push_back(model.gradient_norm(tokens));
    result.rates.push_back(model.update(step, tokens, result.norms.back()));
  }
  for (const Parameter* parameter : model.parameters()) {
    const std::vector<float> values = read_back<float>(*stream, parameter->value);
    result.weights.insert(result.weights.end(), values.begin(), values.end());
  }
  return result;
}

class TrainModelTest : public ::testing::Test {
 protected:
  testing::TempDir dir_;
};

TEST_F(TrainModelTest, TwoStepsAreTheSameEveryTime) {
  const RunConfig config = testing::small_run(dir_);
  const auto solo = make_solo_group();
  const Trained first = train(config, *solo, 2), second = train(config, *solo, 2);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.norms, second.norms);
  EXPECT_EQ(first.weights, second.weights);
  const double tokens = 8 * 16;
  EXPECT_NEAR(first.losses[0] / tokens, std::log(64.0), 0.1);
  EXPECT_EQ(first.rates, (std::vector<double>{1e-3, 2e-3}));  // a warm-up of two steps to 2e-3
  EXPECT_GT(first.norms[0], 0);
}

TEST_F(TrainModelTest, StepsChangeEveryWeightTensorAndSeedsTheStart) {
  const RunConfig config = testing::small_run(dir_);
  const auto solo = make_solo_group();
  const Trained none = train(config, *solo, 0), some = train(config, *solo, 2);
  ASSERT_EQ(none.weights.size(), some.weights.size());
  size_t changed = 0;
  for (size_t i = 0; i < none.weights.size(); ++i) changed += none.weights[i] != some.weights[i];
  EXPECT_GT(changed, none.weights.size() / 2);
  EXPECT_NE(none.weights, train(testing::small_run(dir_, {"run.seed=5"}), *solo, 0).weights);
}

TEST_F(TrainModelTest, RanksEqualOneRankToRounding) {
  const RunConfig config = testing::small_run(dir_);
  const auto solo = make_solo_group();
  const Trained one = train(config, *solo, 3);
  for (const int size : {2, 4}) {
    std::vector<Trained> ranks(static_cast<size_t>(size));
    testing::run_ranks(size, [&](Group& world, Control&) {
      ranks[static_cast<size_t>(world.rank())] = train(config, world, 3);
    });
    for (const Trained& rank : ranks) EXPECT_EQ(rank.weights, ranks[0].weights);
    for (size_t step = 0; step < 3; ++step) {
      double loss = 0;
      for (const Trained& rank : ranks) loss += rank.losses[step];
      EXPECT_NEAR(loss, one.losses[step], 1e-5 * one.losses[step]);
      EXPECT_NEAR(ranks[0].norms[step], one.norms[step], 1e-4 * one.norms[step]);
    }
  }
}

TEST_F(TrainModelTest, SchedulesThatCannotBeAreRefused) {
  RunConfig config = testing::small_run(dir_);
  config.optimizer.warmup_steps = config.optimizer.decay_steps + 1;
  const auto solo = make_solo_group();
  EXPECT_THROW(train(config, *solo, 1), Error);
}

}  // namespace
}  // namespace ferry
