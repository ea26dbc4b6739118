#include "moe/experts.h"

#include <gmock/gmock.h>

#include <cmath>

#include "core/ops/elementwise.h"
#include "tests/support/devices.h"
#include "tests/support/micro_batch.h"

namespace ferry::testing {
namespace {

constexpr int64_t kExperts = 4, kHidden = 6, kFfn = 5, kRows = 12;

// Experts with fixed offsets as a module of the rows; the probabilities are a parameter, so that
// their gradient is checked too.
class ExpertsModule final : public Module {
 public:
  ExpertsModule(Stream& stream, DType dtype, const std::vector<int32_t>& offsets,
                bool fused = false)
      : experts_("layers/0/moe/experts", kExperts, {kHidden, kFfn, 0.02, 0.005, dtype}, {}, fused),
        offsets_(from_host(stream, "offsets", offsets, {kExperts + 1})) {
    probs_.name = "probs";
    probs_.shape = {kRows};
    probs_.dtype = accumulate_dtype(dtype);
  }
  Tensor forward(Pass& pass, const Tensor& rows) override {
    return experts_.forward(pass, rows, probs_.value, offsets_);
  }
  Tensor backward(Pass& pass, const Tensor& dy) override {
    const auto [gradients, fc1] = experts_.backward(pass, dy);
    experts_.backward_fc1_weight(pass.stream, fc1);
    accumulate(pass.stream, probs_.grad, gradients.probs);
    return gradients.rows;
  }
  void visit(const ParameterVisitor& visitor) override {
    experts_.visit(visitor);
    visitor(probs_);
  }

 private:
  Experts experts_;
  Parameter probs_;
  Tensor offsets_;
};

class ExpertsTest : public CpuTest {
 protected:
  Outcome run(ExpertsModule& module, DType dtype, TapePolicy* policy = nullptr) {
    allocate_parameters(stream(), module, 1);
    return run_micro_batch(stream(), module, random_tensor(stream(), {kRows, kHidden}, dtype, 2),
                           random_tensor(stream(), {kRows, kHidden}, dtype, 3), {}, policy);
  }
};

TEST_F(ExpertsTest, DescribesItsParameters) {
  ExpertsModule module(stream(), DType::BF16, {0, 3, 6, 9, 12});
  std::vector<std::string> described;
  module.visit([&](Parameter& parameter) {
    if (parameter.name == "probs") return;
    described.push_back(concat(parameter.name, parameter.shape, " ", parameter.init.std));
    EXPECT_EQ(parameter.axis, ReduceAxis::Expert);
    EXPECT_EQ(parameter.dtype, DType::BF16);
    EXPECT_TRUE(parameter.decay);
  });
  EXPECT_EQ(described,
            (std::vector<std::string>{"layers/0/moe/experts/fc1/weight[4, 10, 6] 0.02",
                                      "layers/0/moe/experts/fc2/weight[4, 6, 5] 0.005"}));
}

// ep 2 gives experts 2 and 3 to rank 1; etp 5 gives each of its ranks one of ffn columns.
TEST_F(ExpertsTest, DescribesThePartOfARank) {
  Experts experts("e", kExperts, {kHidden, kFfn, 0.02, 0.005, DType::F32},
                  {.ep_rank = 1, .ep_size = 2, .etp_rank = 3, .etp_size = 5});
  std::vector<std::string> described;
  experts.visit([&](Parameter& parameter) {
    described.push_back(concat(parameter.name, parameter.shape, " of ", parameter.global_shape()));
    EXPECT_EQ(parameter.axis, ReduceAxis::Expert);
    EXPECT_FALSE(parameter.is_copy);
    for (const PlacedBox& box : parameter.placement().boxes())
      described.push_back(concat("row ", box.row, ": ", box.offset, " ", box.extent));
  });
  EXPECT_EQ(described,
            (std::vector<std::string>{"e/fc1/weight[2, 2, 6] of [4, 10, 6]",  // gate and up
                                      "row 0: [2, 3, 0] [1, 1, 6]",           //
                                      "row 1: [2, 8, 0] [1, 1, 6]",           //
                                      "row 2: [3, 3, 0] [1, 1, 6]",           //
                                      "row 3: [3, 8, 0] [1, 1, 6]",           //
                                      "e/fc2/weight[2, 6, 1] of [4, 6, 5]",   //
                                      "row 0: [2, 0, 3] [2, 6, 1]"}));
}

TEST_F(ExpertsTest, RanksMustDivideTheExperts) {
  EXPECT_THAT(
      [&] {
        Experts("e", 4, {kHidden, kFfn, 0.02, 0.005, DType::F32}, {.ep_size = 3});
      },
      ::testing::ThrowsMessage<Error>(
          ::testing::HasSubstr("e/fc1/weight: 3 ranks do not divide 4 experts")));
}

TEST_F(ExpertsTest, IsTheFormula) {
  const std::vector<int32_t> offsets = {0, 4, 4, 5, 12};
  ExpertsModule module(stream(), DType::F64, offsets);
  const Outcome outcome = run(module, DType::F64);
  std::vector<std::vector<double>> p;
  module.visit([&](Parameter& q) { p.push_back(read_back_as_double(stream(), q.value)); });
  const auto x =
      read_back_as_double(stream(), random_tensor(stream(), {kRows, kHidden}, DType::F64, 2));
  std::vector<double> want;
  for (int64_t e = 0; e < kExperts; ++e) {
    for (int64_t row = offsets[e]; row < offsets[e + 1]; ++row) {
      std::vector<double> h(kFfn);
      for (int64_t f = 0; f < kFfn; ++f) {
        double gate = 0, up = 0;
        for (int64_t i = 0; i < kHidden; ++i) {
          gate += x[row * kHidden + i] * p[0][(e * 2 * kFfn + f) * kHidden + i];
          up += x[row * kHidden + i] * p[0][(e * 2 * kFfn + kFfn + f) * kHidden + i];
        }
        h[f] = gate / (1 + std::exp(-gate)) * up * p[2][row];
      }
      for (int64_t o = 0; o < kHidden; ++o) {
        double sum = 0;
        for (int64_t f = 0; f < kFfn; ++f) sum += h[f] * p[1][(e * kHidden + o) * kFfn + f];
        want.push_back(sum);
      }
    }
  }
  testing::expect_close(outcome.tensors.at("y"), want, 1e-12, 1e-14);
}

TEST_F(ExpertsTest, GradientsMatchDifferenceQuotients) {
  for (const std::vector<int32_t>& offsets :
       {std::vector<int32_t>{0, 3, 6, 9, 12}, {0, 0, 7, 7, 12}, {0, 0, 0, 12, 12}}) {
    SCOPED_TRACE(concat("offsets ", offsets[1], " ", offsets[2], " ", offsets[3]));
    ExpertsModule module(stream(), DType::F64, offsets);
    allocate_parameters(stream(), module, 1);
    expect_gradients(stream(), module, random_tensor(stream(), {kRows, kHidden}, DType::F64, 2));
  }
}

TEST_F(ExpertsTest, ExpertWithoutRowsGetsNothingAdded) {
  device().set_poison_memory(true);
  ExpertsModule module(stream(), DType::F32, {0, 0, 12, 12, 12});
  const Outcome outcome = run(module, DType::F32);
  for (const char* name :
       {"d(layers/0/moe/experts/fc1/weight)", "d(layers/0/moe/experts/fc2/weight)"}) {
    const std::vector<double>& gradient = outcome.tensors.at(name);
    const size_t each = gradient.size() / kExperts;
    for (size_t i = 0; i < gradient.size(); ++i)
      EXPECT_EQ(gradient[i] != 0, i / each == 1) << name << " element " << i;
  }
}

TEST_F(ExpertsTest, DiscardedActivationChangesNothingAndSavesItsMemory) {
  ExpertsModule module(stream(), DType::F32, {0, 0, 7, 7, 12});
  const Outcome kept = run(module, DType::F32);
  DiscardPolicy policy({Label::MoeAct});
  const Outcome discarded = run(module, DType::F32, &policy);
  expect_same(discarded, kept);
  EXPECT_EQ(kept.saved_bytes - discarded.saved_bytes, kRows * kFfn * 4);
}

// Notes the labels of what is saved, and how many rows are in use.
class NotePolicy final : public TapePolicy {
 public:
  explicit NotePolicy(bool discards_activation = false) : discards_(discards_activation) {}
  bool discards(Label label) const override { return discards_ && label == Label::MoeAct; }
  void saved(Record& record, Stream& stream) override {
    notes.push_back(
        concat(name_of(record.label), " ", read_back<int32_t>(stream, record.num_rows)[0]));
  }
  std::vector<std::string> notes;

 private:
  bool discards_;
};

TEST_F(ExpertsTest, FusedExpertsAreOneModule) {
  for (const DType dtype : {DType::F64, DType::F32, DType::BF16}) {
    ExpertsModule parts(stream(), dtype, {0, 0, 7, 7, 12});
    ExpertsModule fused(stream(), dtype, {0, 0, 7, 7, 12}, true);
    NotePolicy part_notes, fused_notes, discarding(true);
    const Outcome expected = run(parts, dtype, &part_notes);
    const Outcome outcome = run(fused, dtype, &fused_notes);
    const Outcome discarded = run(fused, dtype, &discarding);
    expect_same(outcome, expected);
    expect_same(discarded, expected);
    EXPECT_EQ(outcome.saved_bytes - discarded.saved_bytes,
              kRows * kFfn * static_cast<int64_t>(size_of(dtype)));
    EXPECT_EQ(part_notes.notes,
              (std::vector<std::string>{"expert_fc1 12", "moe_act 12", "expert_fc2 12"}));
    EXPECT_EQ(fused_notes.notes, std::vector<std::string>(3, "fused_group_mlp 12"));
  }
}

// The last two of twelve rows are padding, and NaN in what comes in.
TEST_F(ExpertsTest, PaddingReachesNoGradient) {
  device().set_poison_memory(true);
  ExpertsModule module(stream(), DType::F32, {0, 3, 3, 6, 10});
  const auto run_with = [&](const Tensor& padding) {
    allocate_parameters(stream(), module, 1);
    const auto input = [&](uint64_t seed) {
      const Tensor rows = random_tensor(stream(), {kRows, kHidden}, DType::F32, seed);
      stream().copy(rows.rows(10, kRows), padding);
      return rows;
    };
    Outcome outcome = run_micro_batch(stream(), module, input(2), input(3), {});
    for (const char* name : {"y", "dx"}) outcome.tensors.at(name).resize(10 * kHidden);
    outcome.tensors.at("d(probs)").resize(10);
    return outcome;
  };
  const Outcome zeros_outcome = run_with(zeros(stream(), {2, kHidden}, DType::F32));
  expect_same(run_with(poisoned(stream(), {2, kHidden}, DType::F32)), zeros_outcome);
}

}  // namespace
}  // namespace ferry::testing
