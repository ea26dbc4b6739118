#include "layers/embedding.h"

#include <gtest/gtest.h>

#include "tests/layers/over_ranks.h"
#include "tests/support/devices.h"
#include "tests/support/micro_batch.h"

namespace ferry::testing {
namespace {

class EmbeddingTest : public CpuTest {};

TEST_F(EmbeddingTest, DescribesItsParameter) {
  Embedding embedding(11, 6, DType::BF16, 0.03);
  embedding.visit([](Parameter& weight) {
    EXPECT_EQ(weight.name, "embedding/weight");
    EXPECT_EQ(weight.shape, (Shape{11, 6}));
    EXPECT_EQ(weight.dtype, DType::BF16);
    EXPECT_EQ(weight.init.std, 0.03);
    EXPECT_TRUE(weight.decay);
  });
}

TEST_F(EmbeddingTest, LooksTokensUp) {
  Embedding embedding(11, 6, DType::F32, 0.02);
  allocate_parameters(stream(), embedding, 1);
  ModuleRun run;
  run.batch = random_batch(stream(), 3, 4, 11, 5);
  const Tensor dy = random_tensor(stream(), {12, 6}, DType::F32, 2);
  const Outcome outcome = run_micro_batch(stream(), embedding, {}, dy, run);
  const auto tokens = read_back<int32_t>(stream(), run.batch.tokens);
  const auto weight = read_back_as_double(stream(), embedding.weight().value);
  std::vector<double> want;
  for (const int32_t token : tokens)
    want.insert(want.end(), weight.begin() + token * 6, weight.begin() + token * 6 + 6);
  EXPECT_EQ(outcome.tensors.at("y"), want);
  EXPECT_FALSE(outcome.tensors.contains("dx"));
}

TEST_F(EmbeddingTest, GradientsMatchDifferenceQuotients) {
  Embedding embedding(5, 6, DType::F64, 0.02);  // 12 tokens of 5: some occur more than once
  allocate_parameters(stream(), embedding, 1);
  ModuleRun run;
  run.batch = random_batch(stream(), 3, 4, 5, 5);
  expect_gradients(stream(), embedding, {}, run);
}

// 11 = 6 + 5 = 3 + 3 + 3 + 2 rows; 5 = 2 + 2 + 1 + 0.
TEST_F(EmbeddingTest, RanksGiveWhatOneRankGives) {
  for (const int32_t vocab : {11, 5}) {
    SCOPED_TRACE(vocab);
    OverRanks test;
    test.make = [vocab](const TensorParallel& tensor) {
      return std::make_unique<Embedding>(vocab, 6, DType::F64, 0.02, tensor);
    };
    test.run = [vocab](Stream& stream) {
      ModuleRun run;
      run.batch = random_batch(stream, 3, 4, vocab, 5);
      return run;
    };
    test.dy = {12, 6};
    test.tolerance = 1e-15;
    expect_same_over_ranks(test);
  }
}

TEST_F(EmbeddingTest, CanBeTiedToAHeadOnAnotherStage) {
  Embedding embedding(11, 6, DType::F32, 0.02, {nullptr, 1, 2, false});
  EXPECT_EQ(embedding.weight().axis, ReduceAxis::Dense);
  embedding.tie_across_stages();
  EXPECT_EQ(embedding.weight().axis, ReduceAxis::Tied);
  EXPECT_EQ(embedding.weight().shape, (Shape{6, 6}));  // the last row is padding
  EXPECT_EQ(embedding.weight().global_shape(), (Shape{11, 6}));
}

}  // namespace
}  // namespace ferry::testing
