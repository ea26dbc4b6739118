#include "layers/tensor_parallel.h"

#include <gtest/gtest.h>

#include "layers/attention.h"
#include "layers/block.h"
#include "layers/embedding.h"
#include "layers/loss_head.h"
#include "layers/mlp.h"
#include "tests/layers/over_ranks.h"
#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

class TensorParallelTest : public CpuTest {};

TEST_F(TensorParallelTest, OneRankDoesNothing) {
  const TensorParallel one, with_sequence{nullptr, 0, 1, true};
  const Tensor x = random_tensor(stream(), {6, 2}, DType::F32, 1);
  for (const TensorParallel& tensor : {one, with_sequence}) {
    EXPECT_TRUE(tensor.enter(stream(), x).same_memory(x));
    EXPECT_TRUE(tensor.leave(stream(), x).same_memory(x));
    EXPECT_TRUE(tensor.own_rows(x).same_memory(x));
    EXPECT_EQ(tensor.num_rows(6), 6);
    EXPECT_EQ(tensor.first_row(6), 0);
    Parameter parameter;
    tensor.replicate(parameter);
    tensor.replicate_inside(parameter);
    EXPECT_EQ(parameter.axis, ReduceAxis::Dense);
    EXPECT_FALSE(parameter.is_copy);
  }
}

TEST_F(TensorParallelTest, RowsAreCutWithSequenceParallelismOnly) {
  const TensorParallel plain{nullptr, 2, 4, false}, sequence{nullptr, 2, 4, true};
  const Tensor x = random_tensor(stream(), {8, 2}, DType::F32, 1);
  EXPECT_EQ(plain.num_rows(8), 8);
  EXPECT_EQ(plain.first_row(8), 0);
  EXPECT_TRUE(plain.own_rows(x).same_memory(x));
  EXPECT_EQ(sequence.num_rows(8), 2);
  EXPECT_EQ(sequence.first_row(2), 4);
  EXPECT_TRUE(sequence.own_rows(x).same_memory(x.rows(4, 6)));
  EXPECT_THROW(sequence.num_rows(9), Error);
}

TEST_F(TensorParallelTest, RegionsBeginWithAllRowsAndEndWithTheSum) {
  const std::vector<double> all = random_values(8 * 3, 1);
  for (const int size : {2, 4}) {
    for (const bool sequence : {false, true}) {
      run_ranks(size, [&](Group& group, Control&) {
        const auto own_device = make_cpu_device();
        const auto own_stream = own_device->make_stream("rank");
        Stream& on = *own_stream;
        const TensorParallel tensor{&group, group.rank(), size, sequence};
        const Tensor x = tensor_of(on, all, {8, 3}, DType::F64);
        const Tensor entered = tensor.enter(on, tensor.own_rows(x));
        EXPECT_EQ(entered.shape(), (Shape{8, 3}));
        EXPECT_EQ(read_back_as_double(on, entered), all);

        // Rank r has r + 1 times the values.
        std::vector<double> partial = all, sum = all;
        for (double& value : partial) value *= group.rank() + 1;
        for (double& value : sum) value *= size * (size + 1) / 2;
        const Tensor expected = tensor.own_rows(tensor_of(on, sum, {8, 3}, DType::F64));
        const Tensor left = tensor.leave(on, tensor_of(on, partial, {8, 3}, DType::F64));
        testing::expect_close(on, left, expected, 1e-15, 0);
      });
    }
  }
}

TEST_F(TensorParallelTest, WhoSumsTheGradientOfWhatEveryRankHolds) {
  const auto replicated = [](int rank, bool sequence, bool inside) {
    const TensorParallel tensor{nullptr, rank, 2, sequence};
    Parameter parameter;
    if (inside)
      tensor.replicate_inside(parameter);
    else
      tensor.replicate(parameter);
    return concat(parameter.axis == ReduceAxis::Stage ? "stage" : "dense",
                  parameter.is_copy ? " copy" : "");
  };
  EXPECT_EQ(replicated(0, false, false), "dense");
  EXPECT_EQ(replicated(1, false, false), "dense copy");
  for (const int rank : {0, 1}) {
    EXPECT_EQ(replicated(rank, true, false), "stage");
    EXPECT_EQ(replicated(rank, false, true), "stage");
    EXPECT_EQ(replicated(rank, true, true), "stage");
  }
}

TEST_F(TensorParallelTest, PartsOfAVocabularyAreEquallyLargeAndPadded) {
  struct Case {
    int64_t vocab;
    int rank, size;
    int64_t first, rows, real_rows;
  };
  for (const Case& c : {Case{12, 1, 2, 6, 6, 6}, Case{11, 0, 4, 0, 3, 3}, Case{11, 3, 4, 9, 3, 2},
                        Case{5, 2, 4, 4, 2, 1}, Case{5, 3, 4, 6, 2, 0}, Case{7, 0, 1, 0, 7, 7}}) {
    SCOPED_TRACE(concat(c.vocab, " over ", c.size, ", rank ", c.rank));
    const VocabularyPart part = vocabulary_part(c.vocab, c.rank, c.size);
    EXPECT_EQ(part.first, c.first);
    EXPECT_EQ(part.rows, c.rows);
    EXPECT_EQ(part.real_rows, c.real_rows);

    Parameter weight;
    weight.shape = {c.vocab, 3};
    cut_vocabulary(weight, c.rank, c.size);
    EXPECT_EQ(weight.shape, (Shape{c.rows, 3}));
    EXPECT_EQ(weight.global_shape(), (Shape{c.vocab, 3}));
    EXPECT_EQ(weight.placement().num_rows(), c.rows);
    std::vector<PlacedRows> runs;
    if (c.real_rows > 0) runs.push_back({0, c.first, c.real_rows});
    EXPECT_EQ(weight.placement().runs(), runs);
  }
}

// Everything of this folder in a row, as a model has it.
class Model final : public Module {
 public:
  static constexpr int64_t kVocab = 13, kHidden = 12;

  Model(const TensorParallel& tensor, bool tied) : embedding_(kVocab, kHidden, kType, 1, tensor) {
    AttentionConfig attention;
    attention.hidden = kHidden;
    attention.heads = 8;
    attention.kv_heads = 4;
    attention.head_dim = 4;
    attention.qk_norm = QkNormKind::Full;
    attention.dropout = 0.1;
    attention.dtype = kType;
    const MlpConfig mlp{kHidden, 16, 1, 1, kType};
    auto rope = std::make_shared<RopeCache>(4, 10000.0, kType);
    for (const std::string name : {"layers/0", "layers/1"})
      blocks_.push_back(std::make_unique<Block>(
          name, BlockConfig{kHidden, 1e-5, 0.1, kType},
          std::make_unique<Attention>(name + "/attention", attention, rope, tensor),
          std::make_unique<Mlp>(name + "/mlp", mlp, Label::Mlp, tensor), tensor));
    norm_ = std::make_unique<RmsNorm>("final_norm", kHidden, kType, 1e-5, Label::FinalNorm, tensor);
    head_ = tied ? std::make_unique<LossHead>(embedding_.weight(), tensor)
                 : std::make_unique<LossHead>(kVocab, kHidden, kType, 1, tensor);
  }
  Tensor forward(Pass& pass, const Tensor& unused) override {
    Tensor x = embedding_.forward(pass, unused);
    for (const auto& block : blocks_) x = block->forward(pass, x);
    return head_->forward(pass, norm_->forward(pass, x));
  }
  Tensor backward(Pass& pass, const Tensor& unused) override {
    Tensor dx = norm_->backward(pass, head_->backward(pass, unused));
    for (size_t i = blocks_.size(); i-- > 0;) dx = blocks_[i]->backward(pass, dx);
    return embedding_.backward(pass, dx);
  }
  void visit(const ParameterVisitor& visitor) override {
    embedding_.visit(visitor);
    for (const auto& block : blocks_) block->visit(visitor);
    norm_->visit(visitor);
    head_->visit(visitor);
  }

 private:
  static constexpr DType kType = DType::F64;
  Embedding embedding_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<RmsNorm> norm_;
  std::unique_ptr<LossHead> head_;
};

TEST_F(TensorParallelTest, RanksGiveWhatOneRankGivesForAModel) {
  for (const bool tied : {false, true}) {
    SCOPED_TRACE(tied ? "tied" : "own head");
    OverRanks test;
    test.make = [=](const TensorParallel& tensor) { return std::make_unique<Model>(tensor, tied); };
    test.run = [](Stream& stream) {
      ModuleRun run;
      run.batch = random_batch(stream, 4, 8, Model::kVocab, 5, 1, 4);
      run.key = {5, 2, 0};
      return run;
    };
    test.y_is_whole = true;
    test.tolerance = 1e-11;
    expect_same_over_ranks(test);
  }
}

}  // namespace
}  // namespace ferry::testing
