#include "layers/recompute.h"

#include <gtest/gtest.h>

#include <set>

#include "layers/attention.h"
#include "layers/block.h"
#include "layers/mlp.h"
#include "tests/layers/over_ranks.h"
#include "tests/support/devices.h"
#include "tests/support/error_of.h"
#include "tests/support/micro_batch.h"
#include "tests/support/saved_bytes.h"

namespace ferry::testing {
namespace {

constexpr int64_t kHidden = 24, kFfn = 40, kHeads = 4, kHeadDim = 8, kTokens = 18;

// What of a block is recomputed: the modules of these labels, and with Layer the whole block.
using Labels = std::set<Label>;

struct BlockCase {
  DType dtype = DType::F32;
  double dropout = 0.2;
  Labels recomputed;
  std::optional<QkNormKind> qk_norm = QkNormKind::Head;
  bool distribute = false;
};

// A block whose input may be shared by ranks, as a model makes it of whole layers.
class SharedInput final : public Module {
 public:
  SharedInput(std::unique_ptr<Module> inner, const TensorParallel& tensor)
      : inner_(std::move(inner)), checkpoint_(Label::Layer, tensor) {}
  Tensor forward(Pass& pass, const Tensor& x) override {
    return checkpoint_.forward(pass, x,
                               [&](const Tensor& in) { return inner_->forward(pass, in); });
  }
  Tensor backward(Pass& pass, const Tensor& dy) override {
    return checkpoint_.backward(
        pass, dy, [&](const Tensor& in) { return inner_->forward(pass, in); },
        [&](const Tensor& dout) { return inner_->backward(pass, dout); });
  }
  void visit(const ParameterVisitor& visitor) override { inner_->visit(visitor); }

 private:
  std::unique_ptr<Module> inner_;
  ActivationCheckpoint checkpoint_;
};

std::unique_ptr<Module> make_block(const BlockCase& c, const TensorParallel& tensor = {}) {
  const ModuleDecorator decorate = [&](Label label,
                                       std::unique_ptr<Module> module) -> std::unique_ptr<Module> {
    if (!c.recomputed.contains(label)) return module;
    return std::make_unique<Recompute>(std::move(module), label);
  };
  AttentionConfig attention;
  attention.hidden = kHidden;
  attention.heads = kHeads;
  attention.kv_heads = 2;
  attention.head_dim = kHeadDim;
  attention.qk_norm = c.qk_norm;
  attention.dropout = c.dropout;
  attention.dtype = c.dtype;
  const MlpConfig mlp{kHidden, kFfn, 0.02, 0.02, c.dtype};
  auto block = std::make_unique<Block>(
      "layers/0", BlockConfig{kHidden, 1e-5, c.dropout, c.dtype},
      std::make_unique<Attention>("layers/0/attention", attention,
                                  std::make_shared<RopeCache>(kHeadDim, 10000.0, c.dtype), tensor,
                                  decorate),
      decorate(Label::Mlp, std::make_unique<Mlp>("layers/0/mlp", mlp, Label::Mlp, tensor)), tensor);
  if (c.distribute) return std::make_unique<SharedInput>(std::move(block), tensor);
  return decorate(Label::Layer, std::move(block));
}

ModuleRun two_sequences() {
  ModuleRun run;
  run.batch.batch = 2;
  run.batch.seq = kTokens / 2;
  run.batch.first_token = kTokens;
  run.key = {5, 2, 0};
  return run;
}

const std::vector<Labels> kSets = {
    {Label::CoreAttn},
    {Label::Mlp},
    {Label::Layer},
    {Label::CoreAttn, Label::Mlp},
    {Label::Layer, Label::CoreAttn, Label::Mlp},
};

std::string spelled(const Labels& labels) {
  std::string names;
  for (const Label label : labels) names += concat(" ", name_of(label));
  return names;
}

class RecomputeTest : public CpuTest {
 protected:
  Tensor random(DType dtype, uint64_t seed) {
    return random_tensor(stream(), {kTokens, kHidden}, dtype, seed);
  }
  Outcome run(const BlockCase& c, TapePolicy* policy = nullptr) {
    const auto block = make_block(c);
    allocate_parameters(stream(), *block, 1, 0.2);
    return run_micro_batch(stream(), *block, random(c.dtype, 2), random(c.dtype, 3),
                           two_sequences(), policy);
  }
  std::map<std::string, int64_t> saved(const BlockCase& c, TapePolicy* policy = nullptr,
                                       bool training = true) {
    const auto block = make_block(c);
    allocate_parameters(stream(), *block, 1, 0.2);
    ModuleRun r = two_sequences();
    r.training = training;
    return saved_bytes(stream(), *block, random(c.dtype, 2), random(c.dtype, 3), r, policy);
  }
};

TEST_F(RecomputeTest, ChangesNotOneBit) {
  for (const DType dtype : {DType::F64, DType::F32, DType::BF16}) {
    for (const double dropout : {0.0, 0.2}) {
      for (const auto qk_norm : {std::optional<QkNormKind>(), std::optional(QkNormKind::Full)}) {
        const Outcome plain = run({dtype, dropout, {}, qk_norm});
        for (const Labels& labels : kSets) {
          SCOPED_TRACE(concat(name_of(dtype), ", dropout ", dropout, ", norm ", qk_norm.has_value(),
                              ":", spelled(labels)));
          expect_same(run({dtype, dropout, labels, qk_norm}), plain);
        }
      }
    }
  }
}

TEST_F(RecomputeTest, GoesTogetherWithDiscardedNorms) {
  const Outcome plain = run({});
  DiscardPolicy policy({Label::Layernorm});
  for (const Labels& labels : kSets) {
    SCOPED_TRACE(spelled(labels));
    expect_same(run({.recomputed = labels}, &policy), plain);
  }
}

TEST_F(RecomputeTest, ReadsNothingThatWasNotWritten) {
  const Outcome plain = run({});
  device().set_poison_memory(true);
  for (const Labels& labels : kSets) expect_same(run({.recomputed = labels}), plain);
}

TEST_F(RecomputeTest, SavesTheInputAlone) {
  using Bytes = std::map<std::string, int64_t>;
  const int64_t rows = kTokens * 4, qkv = (kHeads + 4) * kHeadDim * rows;
  const int64_t rstd = rows, lse = kHeads * rows;
  const Bytes plain = saved({});
  EXPECT_EQ(plain, (Bytes{{"attn_norm", kHidden * rows + rstd},
                          {"qkv_linear", kHidden * rows},
                          {"qk_norm", qkv + (kHeads + 2) * rows},
                          {"core_attn", qkv + lse},
                          {"attn_proj", kHeads * kHeadDim * rows},
                          {"mlp_norm", kHidden * rows + rstd},
                          {"mlp", (kHidden + 3 * kFfn) * rows}}));
  Bytes want = plain;
  want["core_attn"] = qkv;
  EXPECT_EQ(saved({.recomputed = {Label::CoreAttn}}), want);
  want = plain;
  want["mlp"] = kHidden * rows;
  EXPECT_EQ(saved({.recomputed = {Label::Mlp}}), want);
  EXPECT_EQ(saved({.recomputed = {Label::Layer}}), (Bytes{{"layer", kHidden * rows}}));
  EXPECT_EQ(saved({.recomputed = {Label::Layer, Label::CoreAttn, Label::Mlp}}),
            (Bytes{{"layer", kHidden * rows}}));

  // Inputs that the tape can rebuild are not there at all.
  DiscardPolicy policy({Label::Layernorm});
  want = plain;
  want.erase("mlp");
  want.erase("core_attn");
  want.erase("qkv_linear");
  EXPECT_EQ(saved({.recomputed = {Label::CoreAttn, Label::Mlp}}, &policy), want);
}

// What policies hear: a module that is recomputed has one record, in its place.
TEST_F(RecomputeTest, RecordsStayInTheOrderOfForward) {
  class NotingPolicy final : public TapePolicy {
   public:
    void saved(Record& record, Stream&) override {
      notes += concat(" ", name_of(record.label), record.tensors.size());
    }
    std::string notes;
  };
  const auto notes = [&](const Labels& labels) {
    NotingPolicy policy;
    run({.recomputed = labels}, &policy);
    return policy.notes;
  };
  EXPECT_EQ(notes({}), " attn_norm2 qkv_linear1 qk_norm3 core_attn3 attn_proj1 mlp_norm2 mlp3");
  EXPECT_EQ(notes({Label::CoreAttn, Label::Mlp}),
            " attn_norm2 qkv_linear1 qk_norm3 core_attn1 attn_proj1 mlp_norm2 mlp1");
  EXPECT_EQ(notes({Label::Layer, Label::Mlp}), " layer1");
}

TEST_F(RecomputeTest, EvaluationSavesNothing) {
  for (const Labels& labels : kSets)
    EXPECT_EQ(sum_of(saved({.recomputed = labels}, nullptr, false)), 0);
}

// The ledger of the pass knows of the second forward, too: what a layer needs while it is backward.
TEST_F(RecomputeTest, SecondForwardIsCounted) {
  const auto peak = [&](const Labels& labels) {
    const auto block = make_block({.recomputed = labels});
    allocate_parameters(stream(), *block, 1, 0.2);
    const ModuleRun r = two_sequences();
    MemoryLedger ledger;
    StepTotals totals;
    Tape tape(Tape::Mode::Record, nullptr, &ledger);
    Pass pass(stream(), tape, r.batch, totals, r.key, true);
    block->forward(pass, random(DType::F32, 2));
    block->backward(pass, random(DType::F32, 3));
    stream().synchronize();
    EXPECT_EQ(ledger.current(), 0);
    return ledger.peak();
  };
  EXPECT_EQ(peak({Label::Layer}), peak({}));
}

// The second forward of such a module draws other dropout masks: what the tests here must find.
class OtherKeyTheSecondTime final : public Module {
 public:
  explicit OtherKeyTheSecondTime(std::unique_ptr<Module> inner) : inner_(std::move(inner)) {}
  Tensor forward(Pass& pass, const Tensor& x) override {
    const RandomKey key = pass.key;
    pass.key.step += num_forwards_++;
    const Tensor y = inner_->forward(pass, x);
    pass.key = key;
    return y;
  }
  Tensor backward(Pass& pass, const Tensor& dy) override { return inner_->backward(pass, dy); }
  void visit(const ParameterVisitor& visitor) override { inner_->visit(visitor); }

 private:
  std::unique_ptr<Module> inner_;
  uint32_t num_forwards_ = 0;
};

TEST_F(RecomputeTest, AnotherKeyInTheSecondForwardWouldBeSeen) {
  for (const double dropout : {0.0, 0.2}) {
    const auto outcome = [&](std::unique_ptr<Module> block) {
      allocate_parameters(stream(), *block, 1, 0.2);
      return run_micro_batch(stream(), *block, random(DType::F32, 2), random(DType::F32, 3),
                             two_sequences());
    };
    const BlockCase c{.dropout = dropout};
    const Outcome plain = outcome(make_block(c));
    const Outcome wrong = outcome(std::make_unique<Recompute>(
        std::make_unique<OtherKeyTheSecondTime>(make_block(c)), Label::Layer));
    EXPECT_EQ(wrong.tensors.at("y"), plain.tensors.at("y"));
    EXPECT_EQ(wrong.tensors.at("dx") == plain.tensors.at("dx"), dropout == 0);
  }
}

// Notes whether what it saves is kept.
class NotingTape final : public Module {
 public:
  explicit NotingTape(std::string& notes) : notes_(notes) {}
  Tensor forward(Pass& pass, const Tensor& x) override {
    notes_ += pass.tape().recording() ? " saves" : " drops";
    return x;
  }
  Tensor backward(Pass&, const Tensor& dy) override {
    notes_ += " backward";
    return dy;
  }
  void visit(const ParameterVisitor&) override {}

 private:
  std::string& notes_;
};

// Also while the first forward runs, nothing piles up.
TEST_F(RecomputeTest, DropsInTheFirstForwardAndSavesInTheSecond) {
  const auto notes = [&](int num_nested, bool training) {
    std::string noted;
    std::unique_ptr<Module> module = std::make_unique<NotingTape>(noted);
    for (int i = 0; i < num_nested; ++i)
      module = std::make_unique<Recompute>(std::move(module), Label::Layer);
    const Tensor x = random(DType::F32, 2);
    ModuleRun r = two_sequences();
    r.training = training;
    run_micro_batch(stream(), *module, x, x, r);
    return noted;
  };
  EXPECT_EQ(notes(0, true), " saves backward");
  EXPECT_EQ(notes(1, true), " drops saves backward");
  EXPECT_EQ(notes(2, true), " drops drops saves backward");
  EXPECT_EQ(notes(2, false), " drops");
}

// Saves more than it loads.
class Forgetful final : public Module {
 public:
  Tensor forward(Pass& pass, const Tensor& x) override {
    pass.tape().save(pass.stream, Label::Mlp, {x});
    return x;
  }
  Tensor backward(Pass&, const Tensor& dy) override { return dy; }
  void visit(const ParameterVisitor&) override {}
};

TEST_F(RecomputeTest, SeesRecordsThatAreLeft) {
  Recompute module(std::make_unique<Forgetful>(), Label::Moe);
  const Tensor x = random(DType::F32, 2);
  const std::string error =
      error_of([&] { run_micro_batch(stream(), module, x, x, two_sequences()); });
  EXPECT_NE(error.find("1 records of a recomputed moe were not loaded"), std::string::npos)
      << error;
}

OverRanks over_ranks(const BlockCase& c) {
  OverRanks test;
  test.make = [c](const TensorParallel& tensor) { return make_block(c, tensor); };
  test.run = [](Stream&) { return two_sequences(); };
  test.x = test.dy = {kTokens, kHidden};
  test.dtype = c.dtype;
  return test;
}

void expect_same_on_each_rank(const BlockCase& c, bool sequence) {
  BlockCase plain = c;
  plain.recomputed = {};
  plain.distribute = false;
  std::map<std::string, std::vector<double>> values;
  run_rank(over_ranks(plain), {}, values);
  const auto want = run_over_ranks(over_ranks(plain), 2, sequence, values);
  const auto got = run_over_ranks(over_ranks(c), 2, sequence, values);
  for (size_t rank = 0; rank < 2; ++rank) expect_same(got[rank].outcome, want[rank].outcome);
}

TEST_F(RecomputeTest, ChangesNotOneBitOnTensorParallelRanks) {
  for (const bool sequence : {false, true}) {
    for (const Labels& labels : kSets) {
      SCOPED_TRACE(concat("sequence ", sequence, ":", spelled(labels)));
      expect_same_on_each_rank({.recomputed = labels, .qk_norm = QkNormKind::Full}, sequence);
    }
  }
}

TEST_F(RecomputeTest, RanksCanShareInputs) {
  for (const DType dtype : {DType::F64, DType::F32, DType::BF16}) {
    expect_same_on_each_rank({.dtype = dtype, .distribute = true}, false);
    expect_same_on_each_rank(
        {.dtype = dtype, .recomputed = {Label::CoreAttn, Label::Mlp}, .distribute = true}, false);
  }
}

TEST_F(RecomputeTest, EachRankSavesItsShareOfTheInput) {
  for (const bool distribute : {false, true}) {
    run_ranks(2, [&](Group& group, Control&) {
      const auto rank_device = make_cpu_device();
      const auto rank_stream = rank_device->make_stream("rank");
      const TensorParallel tensor{&group, group.rank(), 2, false};
      const auto block =
          make_block({.recomputed = {Label::Layer}, .distribute = distribute}, tensor);
      allocate_parameters(*rank_stream, *block, 1);
      const Tensor x = random_tensor(*rank_stream, {kTokens, kHidden}, DType::F32, 2);
      const auto bytes = saved_bytes(*rank_stream, *block, x, x, two_sequences());
      EXPECT_EQ(bytes, (std::map<std::string, int64_t>{
                           {"layer", kTokens * kHidden * 4 / (distribute ? 2 : 1)}}));
    });
  }
}

TEST_F(RecomputeTest, RefusesToShareWhatIsNotWhole) {
  const std::string sequence = error_of([] {
    ActivationCheckpoint(Label::Layer, TensorParallel{nullptr, 0, 2, true});
  });
  EXPECT_NE(sequence.find("under sequence parallelism each rank has only its rows"),
            std::string::npos)
      << sequence;
  SharedInput module(std::make_unique<Forgetful>(), {nullptr, 0, 4, false});
  const std::string rows = error_of([&] {
    const Tensor x = random(DType::F32, 2);
    run_micro_batch(stream(), module, x, x, two_sequences());
  });
  EXPECT_NE(rows.find("4 tensor-parallel ranks do not divide 18 tokens"), std::string::npos)
      << rows;
}

}  // namespace
}  // namespace ferry::testing
