#include "app/train_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/app/small_run.h"
#include "tests/app/training_rank.h"

namespace ferry {
namespace {

using testing::parallel_run;
using testing::TrainingRank;

struct Trained {
  std::vector<testing::StepNumbers> steps;
  std::map<std::string, std::vector<double>> weights;
};

// `num_steps` steps on so many ranks.
Trained train(const RunConfig& config, int ranks, int num_steps) {
  Trained result;
  testing::Assembly weights;
  testing::run_ranks(ranks, [&](Group& world, Control&) {
    TrainingRank rank(config, world);
    for (int step = 0; step < num_steps; ++step) {
      const testing::StepNumbers numbers = rank.step();
      if (world.rank() == 0) result.steps.push_back(numbers);
    }
    weights.add_values(rank);
  });
  result.weights = weights.whole();
  return result;
}

class TrainModelTest : public ::testing::Test {
 protected:
  testing::TempDir dir_;
};

TEST_F(TrainModelTest, TwoStepsAreTheSameEveryTime) {
  const RunConfig config = testing::small_run(dir_);
  const Trained first = train(config, 1, 2), second = train(config, 1, 2);
  for (size_t step = 0; step < 2; ++step) {
    EXPECT_EQ(first.steps[step].loss, second.steps[step].loss);
    EXPECT_EQ(first.steps[step].norm, second.steps[step].norm);
    EXPECT_GT(first.steps[step].norm, 0);
    EXPECT_EQ(first.steps[step].lr, 1e-3 * static_cast<double>(step + 1));  // a warm-up to 2e-3
  }
  EXPECT_EQ(first.weights, second.weights);
  EXPECT_NEAR(first.steps[0].loss / (8 * 16), std::log(64.0), 0.1);
}

TEST_F(TrainModelTest, StepsChangeEveryWeightTensorAndSeedsTheStart) {
  const RunConfig config = testing::small_run(dir_);
  const Trained none = train(config, 1, 0), some = train(config, 1, 2);
  ASSERT_EQ(none.weights.size(), some.weights.size());
  for (const auto& [name, values] : none.weights) EXPECT_NE(values, some.weights.at(name)) << name;
  EXPECT_NE(none.weights, train(testing::small_run(dir_, {"run.seed=5"}), 1, 0).weights);
}

TEST_F(TrainModelTest, EveryLayoutBeginsWithTheSameWeights) {
  for (const auto& layout : testing::layouts_of_four()) {
    SCOPED_TRACE(::testing::PrintToString(layout));
    const RunConfig config = parallel_run(dir_, layout, 4);
    EXPECT_EQ(train(config, 4, 0).weights,
              train(parallel_run(dir_, {concat("model.tie_embeddings=",
                                               config.model.tie_embeddings ? "true" : "false")}),
                    1, 0)
                  .weights);
  }
}

// The norm of the gradients counts each of them once, and the update is that of one rank.
TEST_F(TrainModelTest, EveryLayoutIsOneRank) {
  std::map<bool, Trained> one;
  for (const bool tied : {true, false})
    one[tied] =
        train(parallel_run(dir_, {concat("model.tie_embeddings=", tied ? "true" : "false")}), 1, 3);
  for (const auto& layout : testing::layouts_of_four()) {
    SCOPED_TRACE(::testing::PrintToString(layout));
    const RunConfig config = parallel_run(dir_, layout, 4);
    const Trained four = train(config, 4, 3);
    const Trained& want = one.at(config.model.tie_embeddings);
    ASSERT_EQ(four.steps.size(), 3u);
    for (size_t step = 0; step < 3; ++step) {
      EXPECT_NEAR(four.steps[step].loss, want.steps[step].loss, 1e-12 * want.steps[step].loss);
      EXPECT_NEAR(four.steps[step].norm, want.steps[step].norm, 1e-10 * want.steps[step].norm);
      EXPECT_EQ(four.steps[step].lr, want.steps[step].lr);
    }
    ASSERT_EQ(four.weights.size(), want.weights.size());
    for (const auto& [name, values] : want.weights)
      testing::expect_close(four.weights.at(name), values, 1e-9, 1e-9);
  }
}

// Overlapping communication with computation, and sharing the optimizer's work, changes when and
// where things happen, and nothing else.
TEST_F(TrainModelTest, OverlapAndTheDistributedOptimizerDoNotChangeABit) {
  for (const char* layout : {"parallel.expert=2", "parallel.pipeline=2", "parallel.tensor=2"}) {
    SCOPED_TRACE(layout);
    const auto with = [&](const char* distributed, const char* reduce, const char* gather) {
      const std::vector<std::string> overrides = {
          layout, concat("optimizer.distributed=", distributed),
          concat("optimizer.overlap_grad_reduce=", reduce),
          concat("optimizer.overlap_param_gather=", gather)};
      return train(parallel_run(dir_, overrides, 4), 4, 3).weights;
    };
    const auto want = with("false", "false", "false");
    EXPECT_EQ(with("false", "true", "false"), want);
    EXPECT_EQ(with("true", "false", "false"), want);
    EXPECT_EQ(with("true", "true", "false"), want);
    EXPECT_EQ(with("true", "true", "true"), want);
  }
}

TEST_F(TrainModelTest, InFloat32RanksEqualOneRankToRounding) {
  const Trained one = train(testing::small_run(dir_), 1, 3);
  for (const int ranks : {2, 4}) {
    const Trained many = train(testing::small_run(dir_, {}, ranks), ranks, 3);
    for (size_t step = 0; step < 3; ++step) {
      EXPECT_NEAR(many.steps[step].loss, one.steps[step].loss, 1e-5 * one.steps[step].loss);
      EXPECT_NEAR(many.steps[step].norm, one.steps[step].norm, 1e-4 * one.steps[step].norm);
    }
  }
}

// All ranks' stored rows are the state of the whole model, each element once.
TEST_F(TrainModelTest, RanksStoreEverythingOnce) {
  for (const auto& layout : testing::layouts_of_four()) {
    SCOPED_TRACE(::testing::PrintToString(layout));
    const RunConfig config = parallel_run(dir_, layout, 4);
    testing::Assembly state;
    testing::run_ranks(4, [&](Group& world, Control&) {
      TrainingRank rank(config, world);
      state.add_state(rank);
    });
    EXPECT_EQ(state.whole().size(), 3 * parameter_names(config.gpt()).size());
    state.expect_each_once();
  }
}

TEST_F(TrainModelTest, SchedulesThatCannotBeAreRefused) {
  RunConfig config = testing::small_run(dir_);
  config.optimizer.warmup_steps = config.optimizer.decay_steps + 1;
  try {
    train(config, 1, 1);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Usage);
  }
}

}  // namespace
}  // namespace ferry
