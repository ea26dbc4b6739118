#include "layers/loss_head.h"

#include <gtest/gtest.h>

#include <cmath>

#include "layers/embedding.h"
#include "tests/layers/over_ranks.h"
#include "tests/support/devices.h"
#include "tests/support/micro_batch.h"

namespace ferry::testing {
namespace {

constexpr int64_t kVocab = 11, kHidden = 6;

// Embedding and head on one weight, without anything between them.
class TiedModel final : public Module {
 public:
  explicit TiedModel(const TensorParallel& tensor = {})
      : embedding_(kVocab, kHidden, DType::F64, 0.02, tensor),
        head_(embedding_.weight(), tensor, 1) {}
  Tensor forward(Pass& pass, const Tensor& x) override {
    return head_.forward(pass, embedding_.forward(pass, x));
  }
  Tensor backward(Pass& pass, const Tensor& dy) override {
    return embedding_.backward(pass, head_.backward(pass, dy));
  }
  void visit(const ParameterVisitor& visitor) override {
    embedding_.visit(visitor);
    head_.visit(visitor);
  }

 private:
  Embedding embedding_;
  LossHead head_;
};

class LossHeadTest : public CpuTest {
 protected:
  // 300 tokens: chunks of 128, 128 and 44 if the limit asks for them.
  ModuleRun run() {
    ModuleRun result;
    result.batch = random_batch(stream(), 3, 100, kVocab, 5);
    return result;
  }
  std::unique_ptr<LossHead> make(int64_t max_logit_bytes, DType dtype = DType::F64) {
    auto head =
        std::make_unique<LossHead>(kVocab, kHidden, dtype, 0.02, TensorParallel{}, max_logit_bytes);
    allocate_parameters(stream(), *head, 1);
    return head;
  }
};

TEST_F(LossHeadTest, DescribesItsParameter) {
  LossHead(kVocab, kHidden, DType::BF16, 0.03).visit([](Parameter& weight) {
    EXPECT_EQ(weight.name, "lm_head/weight");
    EXPECT_EQ(weight.shape, (Shape{kVocab, kHidden}));
    EXPECT_EQ(weight.dtype, DType::BF16);
    EXPECT_EQ(weight.init.std, 0.03);
    EXPECT_TRUE(weight.decay);
  });
  Parameter tied;
  LossHead(tied).visit([](Parameter&) { FAIL() << "a tied weight belongs to the embedding"; });
}

TEST_F(LossHeadTest, ChunksAreMultiplesOf128WithinTheLimit) {
  EXPECT_EQ(loss_chunk_tokens(50304, DType::BF16), 5248);  // 504 MiB
  EXPECT_EQ(loss_chunk_tokens(50304, DType::F32), 2560);
  EXPECT_EQ(loss_chunk_tokens(1 << 30, DType::F64), 128);
  EXPECT_EQ(loss_chunk_tokens(16, DType::F32, 64 * 300), 256);
}

TEST_F(LossHeadTest, IsTheFormula) {
  const auto head = make(1);
  const ModuleRun r = run();
  const Tensor x = random_tensor(stream(), {300, kHidden}, DType::F64, 2);
  const Outcome outcome = run_micro_batch(stream(), *head, x, {}, r);
  std::vector<double> weight, want;
  head->visit([&](Parameter& p) { weight = read_back_as_double(stream(), p.value); });
  const auto in = read_back_as_double(stream(), x);
  const auto labels = read_back<int32_t>(stream(), r.batch.labels);
  const auto mask = read_back_as_double(stream(), r.batch.loss_mask);
  double total = 0;
  for (int64_t t = 0; t < 300; ++t) {
    double sum = 0, chosen = 0;
    for (int64_t v = 0; v < kVocab; ++v) {
      double logit = 0;
      for (int64_t i = 0; i < kHidden; ++i) logit += in[t * kHidden + i] * weight[v * kHidden + i];
      sum += std::exp(logit);
      if (labels[t] == v) chosen = logit;
    }
    want.push_back(mask[t] * (std::log(sum) - chosen));
    total += want.back();
  }
  testing::expect_close(outcome.tensors.at("y"), want, 1e-12, 1e-13);
  testing::expect_close(outcome.tensors.at("total loss"), {total}, 1e-12, 0);
}

TEST_F(LossHeadTest, GradientsMatchDifferenceQuotients) {
  for (const int64_t max_logit_bytes : {int64_t{1}, kMaxLogitBytes}) {
    const auto head = make(max_logit_bytes);
    expect_loss_gradients(stream(), *head, random_tensor(stream(), {300, kHidden}, DType::F64, 2),
                          run());
  }
}

TEST_F(LossHeadTest, GradientsOfATiedWeightMatchDifferenceQuotients) {
  TiedModel model;
  allocate_parameters(stream(), model, 1);
  expect_loss_gradients(stream(), model, {}, run());
}

TEST_F(LossHeadTest, ChunksDoNotChangeTheResult) {
  const Tensor x = random_tensor(stream(), {300, kHidden}, DType::F64, 2);
  const Outcome whole = run_micro_batch(stream(), *make(kMaxLogitBytes), x, {}, run());
  const Outcome chunked = run_micro_batch(stream(), *make(1), x, {}, run());
  expect_near(chunked, whole, 1e-13);
}

TEST_F(LossHeadTest, LogitsOfTheWholeMicroBatchNeverExist) {
  const auto peak = [&](int64_t max_logit_bytes) {
    const auto head = make(max_logit_bytes);
    const Tensor x = random_tensor(stream(), {300, kHidden}, DType::F64, 2);
    const ModuleRun r = run();
    stream().synchronize();
    device().memory().reset_peak();
    const int64_t before = device().memory().peak();
    Tape tape;
    StepTotals totals;
    Pass pass(stream(), tape, r.batch, totals, r.key, true);
    head->forward(pass, x);
    stream().synchronize();
    return device().memory().peak() - before;
  };
  const int64_t row = kVocab * 8;
  EXPECT_EQ(peak(kMaxLogitBytes) - peak(1), (300 - 128) * row);
}

TEST_F(LossHeadTest, EvaluationMakesNoGradientAndTheSameLoss) {
  const auto head = make(1);
  const Tensor x = random_tensor(stream(), {300, kHidden}, DType::F64, 2);
  ModuleRun r = run();
  const Outcome training = run_micro_batch(stream(), *head, x, {}, r);
  r.training = false;
  const Outcome evaluation = run_micro_batch(stream(), *head, x, {}, r);
  EXPECT_EQ(evaluation.tensors.at("y"), training.tensors.at("y"));
  EXPECT_EQ(evaluation.tensors.at("total loss"), training.tensors.at("total loss"));
  EXPECT_EQ(evaluation.num_records, 0u);
  head->visit([&](Parameter& weight) {
    for (const double value : read_back_as_double(stream(), weight.grad)) EXPECT_EQ(value, 0);
  });
}

// Two micro-batches of a step add up.
TEST_F(LossHeadTest, AddsToTheTotalOfTheStep) {
  const auto head = make(1);
  const Tensor x = random_tensor(stream(), {300, kHidden}, DType::F64, 2);
  const ModuleRun r = run();
  StepTotals totals;
  for (int micro = 0; micro < 2; ++micro) {
    Tape tape(Tape::Mode::Off);
    Pass pass(stream(), tape, r.batch, totals, r.key, false);
    head->forward(pass, x);
  }
  const double once = run_micro_batch(stream(), *head, x, {}, r).tensors.at("total loss")[0];
  EXPECT_NEAR(read_back_as_double(stream(), totals.all().at("loss"))[0], 2 * once, 1e-10);
}

OverRanks over_ranks(int32_t vocab, int64_t max_logit_bytes) {
  OverRanks test;
  test.make = [=](const TensorParallel& tensor) {
    return std::make_unique<LossHead>(vocab, kHidden, DType::F64, 0.02, tensor, max_logit_bytes);
  };
  test.run = [=](Stream& stream) {
    ModuleRun run;
    run.batch = random_batch(stream, 3, 100, vocab, 5);
    return run;
  };
  test.x = {300, kHidden};
  test.y_is_whole = true;
  return test;
}

// 11 = 6 + 5 = 3 + 3 + 3 + 2 columns; 5 = 2 + 2 + 1 + 0.
TEST_F(LossHeadTest, RanksGiveWhatOneRankGives) {
  for (const int32_t vocab : {11, 5}) {
    for (const int64_t max_logit_bytes : {int64_t{1}, kMaxLogitBytes}) {
      SCOPED_TRACE(concat(vocab, " columns, at most ", max_logit_bytes, " bytes"));
      expect_same_over_ranks(over_ranks(vocab, max_logit_bytes));
    }
  }
}

TEST_F(LossHeadTest, RanksEvaluateAsOneRankDoes) {
  OverRanks test = over_ranks(kVocab, 1);
  test.run = [run = test.run](Stream& stream) {
    ModuleRun evaluation = run(stream);
    evaluation.training = false;
    return evaluation;
  };
  expect_same_over_ranks(test);
}

TEST_F(LossHeadTest, OnlyTheFirstRankAddsToTheTotal) {
  const OverRanks test = over_ranks(kVocab, 1);
  std::map<std::string, std::vector<double>> values;
  const RankResult one = run_rank(test, {}, values);
  const auto ranks = run_over_ranks(test, 2, true, values);
  const auto& expected = one.outcome.tensors.at("total loss");
  testing::expect_close(ranks[0].outcome.tensors.at("total loss"), expected, 1e-12, 0);
  EXPECT_EQ(ranks[1].outcome.tensors.at("total loss"), std::vector<double>{0});
}

TEST_F(LossHeadTest, RanksWithATiedWeightGiveWhatOneRankGives) {
  OverRanks test = over_ranks(kVocab, 1);
  test.make = [](const TensorParallel& tensor) { return std::make_unique<TiedModel>(tensor); };
  test.x = {};
  expect_same_over_ranks(test);
}

TEST_F(LossHeadTest, CanBeTiedToAnEmbeddingOnAnotherStage) {
  LossHead head(kVocab, kHidden, DType::F32, 0.02);
  head.tie_across_stages();
  head.visit([](Parameter& weight) {
    EXPECT_EQ(weight.name, "embedding/weight");
    EXPECT_EQ(weight.axis, ReduceAxis::Tied);
  });
  Parameter weight;
  LossHead tied(weight);
  EXPECT_THROW(tied.tie_across_stages(), Error);
}

}  // namespace
}  // namespace ferry::testing
