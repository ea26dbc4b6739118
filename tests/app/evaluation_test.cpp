#include "app/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "app/data_spec.h"
#include "app/host_sum.h"
#include "core/check.h"
#include "tests/app/small_run.h"
#include "tests/app/training_rank.h"
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
    device->set_poison_memory(true);
    const auto stream = device->make_stream("test");
    const MeshGroups groups(Mesh(world.size(), mesh_sizes(config.parallel)), world);
    ParallelModel model(config, *stream, groups);
    return evaluate(model, open_validation_data(config, world.size()), batches);
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

TEST_F(Evaluation, IsTheSameInEveryLayout) {
  std::map<bool, EvaluationResult> one;
  const auto solo = make_solo_group();
  for (const bool tied : {true, false}) {
    const RunConfig config =
        testing::parallel_run(dir_, {concat("model.tie_embeddings=", tied ? "true" : "false")});
    one[tied] = loss(config, *solo, 2);
  }
  for (const auto& layout : testing::layouts_of_four()) {
    SCOPED_TRACE(::testing::PrintToString(layout));
    const RunConfig config = testing::parallel_run(dir_, layout, 4);
    const EvaluationResult& want = one.at(config.model.tie_embeddings);
    testing::run_ranks(4, [&](Group& world, Control&) {
      const EvaluationResult many = loss(config, world, 2);
      EXPECT_EQ(many.tokens, want.tokens);
      EXPECT_NEAR(many.loss, want.loss, 1e-13 * want.loss);
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
  config.batch.micro = config.batch.global = 1000;
  const auto solo = make_solo_group();
  const MeshGroups groups(Mesh(1, {}), *solo);
  ParallelModel model(config, stream(), groups);
  try {
    evaluate(model, data, 1000);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Data);
    EXPECT_THAT(
        error.what(),
        HasSubstr("has 16 samples, but one micro-batch on every data-parallel rank takes 1000"));
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
