#include "layers/dropout.h"

#include <gtest/gtest.h>

#include "tests/layers/over_ranks.h"
#include "tests/support/devices.h"
#include "tests/support/micro_batch.h"

namespace ferry::testing {
namespace {

class DropoutTest : public CpuTest {
 protected:
  static ModuleRun run(uint32_t step, bool training = true) {
    ModuleRun result;
    result.key = {7, step, 0};
    result.training = training;
    return result;
  }
  std::vector<double> mask(Dropout& dropout, const ModuleRun& module_run, int64_t tokens = 64) {
    const Tensor ones =
        tensor_of(stream(), std::vector<double>(static_cast<size_t>(tokens) * 32, 1.0),
                  {tokens, 32}, DType::F32);
    return run_micro_batch(stream(), dropout, ones, ones, module_run).tensors.at("y");
  }
};

TEST_F(DropoutTest, KeepsTheMean) {
  Dropout dropout("layers/0/attn_dropout", 0.25);
  double sum = 0, kept = 0;
  for (const double value : mask(dropout, run(1))) {
    sum += value;
    kept += value != 0;
  }
  EXPECT_NEAR(kept / (64 * 32), 0.75, 0.04);  // 4 standard deviations
  EXPECT_NEAR(sum / kept, 1 / 0.75, 1e-6);
}

TEST_F(DropoutTest, MaskDependsOnStepAndSite) {
  Dropout dropout("layers/0/attn_dropout", 0.25), other("layers/1/attn_dropout", 0.25);
  EXPECT_EQ(mask(dropout, run(1)), mask(dropout, run(1)));
  EXPECT_NE(mask(dropout, run(1)), mask(dropout, run(2)));
  EXPECT_NE(mask(dropout, run(1)), mask(other, run(1)));
}

TEST_F(DropoutTest, MaskOfATokenDoesNotDependOnTheMicroBatch) {
  Dropout dropout("layers/0/attn_dropout", 0.25);
  const std::vector<double> whole = mask(dropout, run(1));
  ModuleRun later = run(1);
  later.batch.first_token = 40;
  const std::vector<double> part = mask(dropout, later, 24);
  EXPECT_EQ(part, std::vector<double>(whole.begin() + 40 * 32, whole.end()));
}

TEST_F(DropoutTest, IsTheIdentityWithoutProbabilityOrTraining) {
  Dropout none("a", 0), some("a", 0.5);
  const Tensor x = random_tensor(stream(), {8, 32}, DType::F32, 1);
  Tape tape;
  StepTotals totals;
  const Batch batch;
  Pass training(stream(), tape, batch, totals, {}, true);
  Pass evaluation(stream(), tape, batch, totals, {}, false);
  EXPECT_TRUE(none.forward(training, x).same_memory(x));
  EXPECT_TRUE(some.forward(evaluation, x).same_memory(x));
  EXPECT_FALSE(some.forward(training, x).same_memory(x));
  EXPECT_TRUE(tape.empty());
}

TEST_F(DropoutTest, GradientsMatchDifferenceQuotients) {
  Dropout dropout("a", 0.3);
  ModuleRun at = run(3);
  at.batch.first_token = 12;
  expect_gradients(stream(), dropout, random_tensor(stream(), {9, 7}, DType::F64, 2), at);
}

TEST_F(DropoutTest, RanksGiveWhatOneRankGives) {
  OverRanks test;
  test.make = [](const TensorParallel& tensor) {
    return std::make_unique<Dropout>("layers/0/attn_dropout", 0.4, tensor);
  };
  test.run = [](Stream&) {
    ModuleRun run;
    run.batch.first_token = 24;
    run.key = {5, 3, 0};
    return run;
  };
  test.x = test.dy = {12, 7};
  test.tolerance = 0;
  expect_same_over_ranks(test);
}

}  // namespace
}  // namespace ferry::testing
