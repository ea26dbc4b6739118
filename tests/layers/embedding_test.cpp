#include "layers/embedding.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace ferry::testing
