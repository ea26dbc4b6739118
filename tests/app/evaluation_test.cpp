#include "app/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "app/data_spec.h"
#include "app/host_sum.h"
#include "core/check.h"
#include "tests/app/small_run.h"
#include "tests/support/devices.h"
#include "tests/support/run_ranks.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

class Evaluation : public testing::CpuTest {
 protected:
  // The loss of the initial model as the ranks of `world` see it.
  static EvaluationResult loss(const RunConfig& config, Group& world, int64_t batches) {
    const auto device = make_cpu_device();
    const auto stream = device->make_stream("test");
    Gpt model(config.gpt(), "none", 1);
    model.initialise(*stream, 1);
    return evaluate(model, *stream, config, open_validation_data(config, world.size()), world,
                    batches);
  }

  testing::TempDir dir_;
};

TEST_F(Evaluation, IsTheMeanOverTheTokensOfSoManyBatches) {
  const RunConfig config = testing::small_run(dir_);
  const auto solo = make_solo_group();
  const EvaluationResult two = loss(config, *solo, 2);
  EXPECT_EQ(two.tokens, 2 * 8 * 16);
  EXPECT_NEAR(two.loss, std::log(64.0), 0.1);
  const EvaluationResult one = loss(config, *solo, 1);
  EXPECT_EQ(one.tokens, 8 * 16);
  EXPECT_NE(one.loss, two.loss);
  EXPECT_EQ(loss(config, *solo, 2).loss, two.loss);
}

TEST_F(Evaluation, IsTheSameForEveryNumberOfRanks) {
  const RunConfig config = testing::small_run(dir_);
  const auto solo = make_solo_group();
  const EvaluationResult one = loss(config, *solo, 2);
  for (const int size : {2, 4}) {
    testing::run_ranks(size, [&](Group& world, Control&) {
      const EvaluationResult many = loss(config, world, 2);
      EXPECT_EQ(many.tokens, one.tokens);
      EXPECT_NEAR(many.loss, one.loss, 1e-6 * one.loss);
    });
  }
}

TEST_F(Evaluation, TakesFewerSamplesOfASmallerDataset) {
  const RunConfig config = testing::small_run(dir_, {"run.eval_batches=1"});
  const auto solo = make_solo_group();
  EXPECT_EQ(loss(config, *solo, 5).tokens, 8 * 16);  // the dataset has one batch
}

TEST_F(Evaluation, ADatasetWithoutOneMicroBatchIsADataError) {
  RunConfig config = testing::small_run(dir_);
  const auto data = open_validation_data(config, 1);
  config.batch.micro = 1000;
  const auto solo = make_solo_group();
  Gpt model(config.gpt(), "none", 1);
  try {
    evaluate(model, stream(), config, data, *solo, 1000);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Data);
    EXPECT_THAT(error.what(),
                HasSubstr("has 16 samples, but one micro-batch on every rank takes 1000"));
  }
}

TEST_F(Evaluation, ThereMayBeNoData) {
  RunConfig config = testing::small_run(dir_);
  config.data.kind = "megatron";
  EXPECT_EQ(open_validation_data(config, 1), nullptr);
}

TEST_F(Evaluation, ValidationSamplesAreNotTrainingSamples) {
  const RunConfig config = testing::small_run(dir_);
  EXPECT_NE(open_validation_data(config, 1)->fingerprint(),
            open_dataset(training_data_spec(config, 1))->fingerprint());
}

TEST_F(Evaluation, HostNumbersAreSummedOverRanks) {
  testing::run_ranks(4, [](Group& world, Control&) {
    const auto device = make_cpu_device();
    std::vector<double> values = {1.0 + world.rank(), 9007199254740990.0 * (world.rank() == 2)};
    const auto stream = device->make_stream("test");
    sum_over_ranks(values, world, *stream);
    EXPECT_EQ(values, (std::vector<double>{10.0, 9007199254740990.0}));
  });
  const auto solo = make_solo_group();
  std::vector<double> alone = {3.5};
  sum_over_ranks(alone, *solo, stream());
  EXPECT_EQ(alone, std::vector<double>{3.5});
}

}  // namespace
}  // namespace ferry
