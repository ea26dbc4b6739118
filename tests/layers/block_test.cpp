#include "layers/block.h"

#include <gtest/gtest.h>

#include "layers/attention.h"
#include "layers/mlp.h"
#include "tests/layers/over_ranks.h"
#include "tests/support/devices.h"
#include "tests/support/micro_batch.h"

namespace ferry::testing {
namespace {

constexpr int64_t kHidden = 24;

std::unique_ptr<Block> make_block(DType dtype, double dropout, const TensorParallel& tensor = {},
                                  int64_t kv_heads = 2) {
  AttentionConfig attention;
  attention.hidden = kHidden;
  attention.heads = 4;
  attention.kv_heads = kv_heads;
  attention.head_dim = 8;
  attention.qk_norm = QkNormKind::Head;
  attention.dropout = dropout;
  attention.dtype = dtype;
  const MlpConfig mlp{kHidden, 40, 0.02, 0.02, dtype};
  return std::make_unique<Block>(
      "layers/0", BlockConfig{kHidden, 1e-5, dropout, dtype},
      std::make_unique<Attention>("layers/0/attention", attention,
                                  std::make_shared<RopeCache>(8, 10000.0, dtype), tensor),
      std::make_unique<Mlp>("layers/0/mlp", mlp, Label::Mlp, tensor), tensor);
}

ModuleRun two_sequences(int64_t seq = 9) {
  ModuleRun run;
  run.batch.batch = 2;
  run.batch.seq = seq;
  run.batch.first_token = 2 * seq;
  run.key = {5, 2, 0};
  return run;
}

class BlockTest : public CpuTest {
 protected:
  Outcome run(const ModuleRun& module_run, TapePolicy* policy = nullptr) {
    const auto block = make_block(DType::F32, 0.2);
    allocate_parameters(stream(), *block, 1, 0.2);
    const Tensor x = random_tensor(stream(), {18, kHidden}, DType::F32, 2);
    const Tensor dy = random_tensor(stream(), {18, kHidden}, DType::F32, 3);
    return run_micro_batch(stream(), *block, x, dy, module_run, policy);
  }
};

TEST_F(BlockTest, VisitsParametersInTheOrderOfForward) {
  std::vector<std::string> names;
  make_block(DType::F32, 0)->visit([&](Parameter& p) { names.push_back(p.name); });
  EXPECT_EQ(names, (std::vector<std::string>{
                       "layers/0/attn_norm/weight", "layers/0/attention/qkv/weight",
                       "layers/0/attention/q_norm/weight", "layers/0/attention/k_norm/weight",
                       "layers/0/attention/proj/weight", "layers/0/mlp_norm/weight",
                       "layers/0/mlp/fc1/weight", "layers/0/mlp/fc2/weight"}));
}

TEST_F(BlockTest, GradientsMatchDifferenceQuotients) {
  for (const double dropout : {0.0, 0.3}) {
    SCOPED_TRACE(concat("dropout ", dropout));
    const auto block = make_block(DType::F64, dropout);
    allocate_parameters(stream(), *block, 1, 0.3);
    expect_gradients(stream(), *block, random_tensor(stream(), {18, kHidden}, DType::F64, 2),
                     two_sequences());
  }
}

// With branches that write nothing, the block is the identity, forward and backward.
TEST_F(BlockTest, ResidualPathIsTheIdentity) {
  const auto block = make_block(DType::F64, 0.2);
  allocate_parameters(stream(), *block, 1);
  block->visit([&](Parameter& p) {
    if (p.name.ends_with("proj/weight") || p.name.ends_with("fc2/weight")) stream().zero(p.value);
  });
  const Tensor x = random_tensor(stream(), {18, kHidden}, DType::F64, 2);
  const Tensor dy = random_tensor(stream(), {18, kHidden}, DType::F64, 3);
  const Outcome outcome = run_micro_batch(stream(), *block, x, dy, two_sequences());
  EXPECT_EQ(outcome.tensors.at("y"), read_back_as_double(stream(), x));
  EXPECT_EQ(outcome.tensors.at("dx"), read_back_as_double(stream(), dy));
}

TEST_F(BlockTest, RunsAreRepeatable) { expect_same(run(two_sequences()), run(two_sequences())); }

TEST_F(BlockTest, ReadsNothingThatWasNotWritten) {
  const Outcome plain = run(two_sequences());
  device().set_poison_memory(true);
  expect_same(run(two_sequences()), plain);
}

TEST_F(BlockTest, DiscardedNormsChangeNothingAndSaveMemory) {
  const Outcome kept = run(two_sequences());
  DiscardPolicy policy({Label::Layernorm});
  const Outcome discarded = run(two_sequences(), &policy);
  expect_same(discarded, kept);
  // The outputs of the two norms, and of that of queries and keys with the values: 4 + 2 * 2 heads
  // of 8. Nothing else.
  EXPECT_EQ(kept.saved_bytes - discarded.saved_bytes, 18 * (2 * kHidden + 8 * 8) * 4);
}

TEST_F(BlockTest, EvaluationSavesNothing) {
  run(two_sequences());  // makes the rope table
  ModuleRun evaluation = two_sequences();
  evaluation.training = false;
  const Outcome outcome = run(evaluation);
  EXPECT_EQ(outcome.num_records, 0u);
  EXPECT_EQ(outcome.saved_bytes, 2 * 9 * 4 * 4);  // the rope table: 2 of [9, 4] F32
}

TEST_F(BlockTest, RanksGiveWhatOneRankGives) {
  for (const DType dtype : {DType::F64, DType::F32, DType::BF16}) {
    for (const double dropout : {0.0, 0.2}) {
      SCOPED_TRACE(concat(name_of(dtype), ", dropout ", dropout));
      OverRanks test;
      test.make = [=](const TensorParallel& tensor) {
        return make_block(dtype, dropout, tensor, 4);
      };
      test.run = [](Stream&) { return two_sequences(10); };
      test.x = test.dy = {20, kHidden};
      test.dtype = dtype;
      test.tolerance = dtype == DType::F64 ? 1e-12 : dtype == DType::F32 ? 1e-5 : 3e-2;
      expect_same_over_ranks(test);
    }
  }
}

class BlockOnDevices : public DeviceTest {};

TEST_P(BlockOnDevices, IsCloseToFloat64) {
  // Relative, in the 2-norm of each tensor.
  const double tolerance = dtype() == DType::F64 ? 1e-13 : dtype() == DType::F32 ? 1e-5 : 3e-2;
  for (const double dropout : {0.0, 0.2}) {
    SCOPED_TRACE(concat("dropout ", dropout));
    const auto block = make_block(dtype(), dropout);
    const auto exact_block = make_block(DType::F64, dropout);
    allocate_parameters(stream(), *block, 1, 0.2);
    copy_parameters(stream(), *block, reference(), *exact_block);
    const Tensor x = random({18, kHidden}, 2), dy = random({18, kHidden}, 3);
    const Outcome outcome = run_micro_batch(stream(), *block, x, dy, two_sequences());
    const Outcome want =
        run_micro_batch(reference(), *exact_block, exact(x), exact(dy), two_sequences());
    expect_near(outcome, want, tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, BlockOnDevices, device_cases(), case_name);

}  // namespace
}  // namespace ferry::testing
