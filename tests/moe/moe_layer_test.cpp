#include "moe/moe_layer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/devices.h"
#include "tests/support/micro_batch.h"

namespace ferry::testing {
namespace {

constexpr int64_t kHidden = 8, kTokens = 20, kNumLossTokens = 16;
constexpr double kAuxCoeff = 0.4, kZCoeff = 0.2;

struct LayerCase {
  int64_t top_k = 2;
  bool pre_softmax = false;
  int64_t shared_ffn = 0;
  bool shared_gate = false;
  std::string force_routing = "none";
  bool gather = false;
};

std::ostream& operator<<(std::ostream& out, const LayerCase& c) {
  return out << "top " << c.top_k << (c.pre_softmax ? " pre" : " post") << "-softmax, shared "
             << c.shared_ffn << (c.shared_gate ? " gated" : "") << ", routing " << c.force_routing
             << (c.gather ? ", gathered" : "");
}

std::unique_ptr<MoeLayer> make_layer(DType dtype, const LayerCase& c, double aux = kAuxCoeff,
                                     double z = kZCoeff) {
  MoeConfig moe;
  moe.experts = 5;
  moe.top_k = c.top_k;
  moe.ffn = 6;
  moe.shared_ffn = c.shared_ffn;
  moe.shared_gate = c.shared_gate;
  moe.gather = c.gather;
  moe.router.pre_softmax = c.pre_softmax;
  moe.router.aux_coeff = {aux};
  moe.router.z_coeff = z;
  return std::make_unique<MoeLayer>("layers/0/moe", moe, MlpConfig{kHidden, 0, 0.02, 0.02, dtype},
                                    c.force_routing, 1);
}

ModuleRun make_run(Stream& stream) {
  ModuleRun run;
  run.batch = random_batch(stream, 4, 5, 7, 1);
  return run;
}

class MoeLayerTest : public CpuTest {
 protected:
  Outcome run(const LayerCase& c, TapePolicy* policy = nullptr, bool training = true,
              DType dtype = DType::F32) {
    const auto layer = make_layer(dtype, c);
    allocate_parameters(stream(), *layer, 1);
    const Tensor x = random_tensor(stream(), {kTokens, kHidden}, dtype, 2);
    const Tensor dy = random_tensor(stream(), {kTokens, kHidden}, dtype, 3);
    ModuleRun r = make_run(stream());
    r.training = training;
    return run_micro_batch(stream(), *layer, x, dy, r, policy);
  }
};

constexpr const char* kCounts = "total expert_tokens/layers/0/moe/router";

TEST_F(MoeLayerTest, VisitsParametersInTheOrderOfForward) {
  std::vector<std::string> names;
  make_layer(DType::F32, {2, false, 7, true, "none"})->visit([&](Parameter& p) {
    names.push_back(concat(p.name.substr(13), p.axis == ReduceAxis::Expert ? " expert" : ""));
  });
  EXPECT_EQ(names,
            (std::vector<std::string>{"shared_experts/fc1/weight", "shared_experts/fc2/weight",
                                      "shared_experts/gate/weight", "router/weight",
                                      "experts/fc1/weight expert", "experts/fc2/weight expert"}));
}

TEST_F(MoeLayerTest, GradientsMatchDifferenceQuotients) {
  for (const LayerCase& c : std::initializer_list<LayerCase>{
           {},
           {.gather = true},
           {.pre_softmax = true},
           {.top_k = 1, .pre_softmax = true},
           {.top_k = 5, .pre_softmax = true},
           {.shared_ffn = 7},
           {.shared_ffn = 7, .shared_gate = true},
           {.force_routing = "skip:[0,3]"},
           {.force_routing = "all_to:[1,4]"},
           {.top_k = 1, .pre_softmax = true, .force_routing = "all_to:[2]"},
           {.pre_softmax = true, .force_routing = "power_law:1.2"}}) {
    SCOPED_TRACE(concat(c));
    const auto layer = make_layer(DType::F64, c);
    allocate_parameters(stream(), *layer, 1);
    ModuleRun check = make_run(stream());
    check.added_loss = [&](StepTotals& totals) {
      const auto total = [&](const char* name) {
        return read_back_as_double(stream(), totals.all().at(name)).at(0);
      };
      return kNumLossTokens * (kAuxCoeff * total("aux_loss") + kZCoeff * total("z_loss"));
    };
    expect_gradients(stream(), *layer, random_tensor(stream(), {kTokens, kHidden}, DType::F64, 2),
                     check);
  }
}

// With one expert that every token uses with probability 1, the layer is that expert's MLP plus
// the shared one.
TEST_F(MoeLayerTest, OneExpertIsADenseMlp) {
  MoeConfig moe;
  moe.experts = 1;
  moe.top_k = 1;
  moe.ffn = 6;
  moe.router.pre_softmax = true;
  const MlpConfig config{kHidden, 6, 0.02, 0.02, DType::F64};
  MoeLayer layer("layers/0/moe", moe, config, "none", 1);
  Mlp mlp("layers/0/moe/experts", config, Label::Mlp);
  allocate_parameters(stream(), layer, 1);
  copy_parameters(stream(), layer, stream(), mlp);
  const Tensor x = random_tensor(stream(), {kTokens, kHidden}, DType::F64, 2);
  const Tensor dy = random_tensor(stream(), {kTokens, kHidden}, DType::F64, 3);
  const Outcome outcome = run_micro_batch(stream(), layer, x, dy, make_run(stream()));
  const Outcome want = run_micro_batch(stream(), mlp, x, dy, make_run(stream()));
  for (const auto& [name, values] : want.tensors)
    EXPECT_LE(relative_error(outcome.tensors.at(name), values), 1e-13) << name;
}

TEST_F(MoeLayerTest, EveryTokenReachesItsExperts) {
  for (const char* mode : {"none", "balanced", "uniform_random", "power_law:2"}) {
    const Outcome outcome = run({.force_routing = mode});
    double sum = 0;
    for (const double count : outcome.tensors.at(kCounts)) sum += count;
    EXPECT_EQ(sum, 2 * kTokens) << mode;
  }
  EXPECT_EQ(run({.force_routing = "balanced"}).tensors.at(kCounts), std::vector<double>(5, 8));
  EXPECT_EQ(run({.force_routing = "all_to:[1,4]"}).tensors.at(kCounts),
            (std::vector<double>{0, 20, 0, 0, 20}));
}

TEST_F(MoeLayerTest, ExpertsWithoutTokensGetNoGradient) {
  device().set_poison_memory(true);
  const Outcome outcome = run({.force_routing = "all_to:[1,4]"});
  for (const char* name :
       {"d(layers/0/moe/experts/fc1/weight)", "d(layers/0/moe/experts/fc2/weight)"}) {
    const std::vector<double>& gradient = outcome.tensors.at(name);
    const size_t each = gradient.size() / 5;
    for (size_t i = 0; i < gradient.size(); ++i)
      EXPECT_EQ(gradient[i] != 0, i / each == 1 || i / each == 4) << name << " element " << i;
  }
}

TEST_F(MoeLayerTest, RunsAreRepeatable) {
  const LayerCase c{.shared_ffn = 7, .shared_gate = true};
  expect_same(run(c), run(c));
}

TEST_F(MoeLayerTest, ReadsNothingThatWasNotWritten) {
  const LayerCase c{.shared_ffn = 7, .shared_gate = true, .force_routing = "skip:[2]"};
  const Outcome plain = run(c);
  device().set_poison_memory(true);
  expect_same(run(c), plain);
}

TEST_F(MoeLayerTest, DiscardedActivationChangesNothingAndSavesItsMemory) {
  const LayerCase c{.shared_ffn = 7};
  const Outcome kept = run(c);
  DiscardPolicy policy({Label::MoeAct, Label::Layernorm});
  const Outcome discarded = run(c, &policy);
  expect_same(discarded, kept);
  EXPECT_EQ(kept.saved_bytes - discarded.saved_bytes, 2 * kTokens * 6 * 4);  // [R, ffn] F32
}

TEST_F(MoeLayerTest, GatheredRowsChangeNothingAndAreNotSaved) {
  device().set_poison_memory(true);
  for (const DType dtype : {DType::F64, DType::F32, DType::BF16}) {
    for (const LayerCase& c : std::initializer_list<LayerCase>{
             {}, {.top_k = 1}, {.top_k = 4, .shared_ffn = 7}, {.force_routing = "all_to:[1,4]"}}) {
      SCOPED_TRACE(concat(c, ", ", name_of(dtype)));
      LayerCase gathered = c;
      gathered.gather = true;
      const Outcome expected = run(c, nullptr, true, dtype);
      const Outcome outcome = run(gathered, nullptr, true, dtype);
      expect_same(outcome, expected);
      EXPECT_EQ(expected.saved_bytes - outcome.saved_bytes,
                kTokens * c.top_k * kHidden * static_cast<int64_t>(size_of(dtype)));
      DiscardPolicy policy({Label::MoeAct, Label::MoePermute});
      expect_same(run(gathered, &policy, true, dtype), expected);
    }
  }
}

TEST_F(MoeLayerTest, EvaluationSavesNothing) {
  const LayerCase c{.shared_ffn = 7, .shared_gate = true};
  const Outcome training = run(c), evaluation = run(c, nullptr, false);
  EXPECT_EQ(evaluation.tensors.at("y"), training.tensors.at("y"));
  EXPECT_EQ(evaluation.num_records, 0u);
  EXPECT_GT(training.num_records, 0u);
  EXPECT_LT(evaluation.saved_bytes, 1000);  // routing plan and totals
}

class MoeLayerOnDevices : public DeviceTest {};

TEST_P(MoeLayerOnDevices, IsCloseToFloat64) {
  // Relative, in the 2-norm of each tensor.
  const double tolerance = dtype() == DType::F64 ? 1e-13 : dtype() == DType::F32 ? 1e-5 : 2e-2;
  for (const LayerCase& c : std::initializer_list<LayerCase>{
           {.shared_ffn = 16, .shared_gate = true},
           {.pre_softmax = true},
           {.top_k = 1, .pre_softmax = true, .force_routing = "all_to:[2]"},
           {.force_routing = "all_to:[0,3]"}}) {
    SCOPED_TRACE(concat(c));
    const auto layer = make_layer(dtype(), c), exact_layer = make_layer(DType::F64, c);
    allocate_parameters(stream(), *layer, 1);
    copy_parameters(stream(), *layer, reference(), *exact_layer);
    const Tensor x = random({kTokens, kHidden}, 2), dy = random({kTokens, kHidden}, 3);
    const Outcome outcome = run_micro_batch(stream(), *layer, x, dy, make_run(stream()));
    const Outcome want =
        run_micro_batch(reference(), *exact_layer, exact(x), exact(dy), make_run(reference()));
    EXPECT_EQ(outcome.tensors.at(kCounts), want.tensors.at(kCounts));
    expect_near(outcome, want, tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, MoeLayerOnDevices, device_cases(), case_name);

}  // namespace
}  // namespace ferry::testing
