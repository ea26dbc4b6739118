#include "moe/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/devices.h"
#include "tests/support/micro_batch.h"

namespace ferry::testing {
namespace {

constexpr int64_t kHidden = 6, kExperts = 5, kTopK = 2, kTokens = 15, kNumLossTokens = 12;

// The router as a module from x to the probabilities of the chosen experts.
class RouterModule final : public Module {
 public:
  RouterModule(const MoeConfig& config, DType dtype, const std::string& force_routing = "none")
      : router("layers/1/moe/router", kHidden, config, 0.02, dtype, force_routing, 1) {}
  Tensor forward(Pass& pass, const Tensor& x) override { return router.forward(pass, x).probs; }
  Tensor backward(Pass& pass, const Tensor& dy) override { return router.backward(pass, dy); }
  void visit(const ParameterVisitor& visitor) override { router.visit(visitor); }

  Router router;
};

MoeConfig config(double aux_coeff, double z_coeff, bool pre_softmax = false) {
  MoeConfig moe;
  moe.experts = kExperts;
  moe.top_k = kTopK;
  moe.router.pre_softmax = pre_softmax;
  moe.router.aux_coeff = {aux_coeff};
  moe.router.z_coeff = z_coeff;
  return moe;
}

// What the router should say, in double precision, from x and its weight.
struct Expected {
  std::vector<double> probs;
  std::vector<double> counts = std::vector<double>(kExperts);
  double aux_loss = 0;
  double z_loss = 0;
};

Expected formula(const std::vector<double>& x, const std::vector<double>& weight,
                 bool pre_softmax) {
  Expected result;
  std::vector<double> score_sums(kExperts);
  for (int64_t t = 0; t < kTokens; ++t) {
    std::vector<double> logits(kExperts), scores(kExperts);
    double sum = 0;
    for (int64_t e = 0; e < kExperts; ++e) {
      for (int64_t i = 0; i < kHidden; ++i)
        logits[e] += x[t * kHidden + i] * weight[e * kHidden + i];
      sum += std::exp(logits[e]);
    }
    std::vector<int64_t> order(kExperts);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
    double chosen_sum = 0;
    for (int64_t k = 0; k < kTopK; ++k) {
      chosen_sum += std::exp(logits[order[k]]);
      result.counts[order[k]] += 1;
    }
    for (int64_t k = 0; k < kTopK; ++k)
      result.probs.push_back(std::exp(logits[order[k]]) / (pre_softmax ? sum : chosen_sum));
    for (int64_t e = 0; e < kExperts; ++e) score_sums[e] += std::exp(logits[e]) / sum;
    result.z_loss += std::log(sum) * std::log(sum) / kTokens;
  }
  for (int64_t e = 0; e < kExperts; ++e)
    result.aux_loss += score_sums[e] * result.counts[e] * kExperts / (kTopK * kTokens * kTokens);
  return result;
}

class RouterTest : public CpuTest {
 protected:
  ModuleRun run() {
    ModuleRun result;
    result.batch = random_batch(stream(), 3, 5, 7, 1);
    EXPECT_EQ(result.batch.num_loss_tokens, kNumLossTokens);
    return result;
  }
  Tensor input(DType dtype = DType::F64) {
    return random_tensor(stream(), {kTokens, kHidden}, dtype, 2);
  }
  Tensor dprobs(DType dtype = DType::F64) {
    return random_tensor(stream(), {kTokens, kTopK}, dtype, 3);
  }
  Outcome outcome_of(RouterModule& module) {
    allocate_parameters(stream(), module, 1, 2);
    return run_micro_batch(stream(), module, input(), dprobs(), run());
  }
  std::vector<double> weight_of(RouterModule& module) {
    std::vector<double> weight;
    module.visit([&](Parameter& p) { weight = read_back_as_double(stream(), p.value); });
    return weight;
  }
};

constexpr const char* kWeightGradient = "d(layers/1/moe/router/weight)";
constexpr const char* kCounts = "total expert_tokens/layers/1/moe/router";

TEST_F(RouterTest, WeightIsNeverRoundedToBf16) {
  for (const DType dtype : {DType::BF16, DType::F32}) {
    RouterModule module(config(0, 0), dtype);
    module.visit([](Parameter& weight) {
      EXPECT_EQ(weight.name, "layers/1/moe/router/weight");
      EXPECT_EQ(weight.shape, (Shape{kExperts, kHidden}));
      EXPECT_EQ(weight.dtype, DType::F32);
      EXPECT_EQ(weight.init.std, 0.02);
      EXPECT_EQ(weight.axis, ReduceAxis::Dense);
      EXPECT_TRUE(weight.decay);
    });
  }
}

// Each tensor-parallel rank has other tokens, so a part of the gradient.
TEST_F(RouterTest, WeightIsWholeOnEveryTensorParallelRank) {
  Router router("r", kHidden, config(0, 0), 0.02, DType::F32, "none", 1, {.rank = 1, .size = 2});
  router.visit([](Parameter& weight) {
    EXPECT_EQ(weight.shape, (Shape{kExperts, kHidden}));
    EXPECT_FALSE(weight.part.has_value());
    EXPECT_FALSE(weight.is_copy);
    EXPECT_EQ(weight.axis, ReduceAxis::Stage);
  });
}

TEST_F(RouterTest, ProbabilitiesLossesAndCountsAreTheFormulas) {
  for (const bool pre_softmax : {false, true}) {
    RouterModule module(config(0.02, 0.01, pre_softmax), DType::F64);
    const Outcome outcome = outcome_of(module);
    const Expected want =
        formula(read_back_as_double(stream(), input()), weight_of(module), pre_softmax);
    testing::expect_close(outcome.tensors.at("y"), want.probs, 1e-12, 0);
    EXPECT_EQ(outcome.tensors.at(kCounts), want.counts);
    testing::expect_close(outcome.tensors.at("total aux_loss"), {want.aux_loss}, 1e-12, 0);
    testing::expect_close(outcome.tensors.at("total z_loss"), {want.z_loss}, 1e-12, 0);
  }
}

TEST_F(RouterTest, LossesAreOnExactlyWhenTheirCoefficientIsNotZero) {
  RouterModule off(config(0, 0), DType::F64);
  const Outcome outcome = outcome_of(off);
  EXPECT_FALSE(outcome.tensors.contains("total aux_loss"));
  EXPECT_FALSE(outcome.tensors.contains("total z_loss"));
  EXPECT_TRUE(outcome.tensors.contains(kCounts));
  RouterModule other(config(0, 0), DType::F64);
  MoeConfig named = config(0.1, 0);
  named.router.balance = {"none"};
  RouterModule none(named, DType::F64);
  EXPECT_FALSE(outcome_of(none).tensors.contains("total aux_loss"));
}

TEST_F(RouterTest, BalancedRoutingHasALossOfOne) {
  RouterModule balanced(config(0.02, 0), DType::F64, "balanced");  // 30 slots, 6 for each expert
  const Outcome outcome = outcome_of(balanced);
  EXPECT_EQ(outcome.tensors.at(kCounts), std::vector<double>(kExperts, 6));
  EXPECT_NEAR(outcome.tensors.at("total aux_loss")[0], 1, 1e-12);
  RouterModule collapsed(config(0.02, 0), DType::F64, "all_to:[1,4]");
  const Outcome worst = outcome_of(collapsed);
  EXPECT_EQ(worst.tensors.at(kCounts), (std::vector<double>{0, 15, 0, 0, 15}));
  EXPECT_NEAR(worst.tensors.at("total aux_loss")[0], 2.5, 1e-12);  // E / k
}

TEST_F(RouterTest, GradientsMatchDifferenceQuotients) {
  for (const bool pre_softmax : {false, true}) {
    for (const auto& [aux, z] : {std::pair(0.0, 0.0), {0.5, 0.0}, {0.0, 0.3}, {0.5, 0.3}}) {
      SCOPED_TRACE(concat("pre_softmax ", pre_softmax, ", coefficients ", aux, " and ", z));
      RouterModule module(config(aux, z, pre_softmax), DType::F64);
      allocate_parameters(stream(), module, 1, 2);
      ModuleRun check = run();
      check.added_loss = [&, aux = aux, z = z](StepTotals& totals) {
        double sum = 0;
        for (const auto& [name, coeff] : {std::pair("aux_loss", aux), {"z_loss", z}})
          if (coeff > 0)
            sum +=
                coeff * kNumLossTokens * read_back_as_double(stream(), totals.all().at(name)).at(0);
        return sum;
      };
      expect_gradients(stream(), module, input(), check);
    }
  }
}

TEST_F(RouterTest, GradientOfTheLossIsLinearInItsCoefficient) {
  std::vector<std::vector<double>> gradients;
  for (const double coeff : {0.0, 0.01, 0.02}) {
    RouterModule module(config(coeff, 0), DType::F64);
    gradients.push_back(outcome_of(module).tensors.at(kWeightGradient));
  }
  double norm = 0;
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    const double once = gradients[1][i] - gradients[0][i];
    EXPECT_NEAR(gradients[2][i] - gradients[0][i], 2 * once, 1e-13);
    norm += once * once;
  }
  EXPECT_GT(norm, 1e-8);
}

// Recomputation runs forward again; what was logged and decided must not change.
TEST_F(RouterTest, SecondForwardOfAMicroBatchLogsNothingAndKeepsThePlan) {
  RouterModule module(config(0.02, 0.01), DType::F64);
  const Outcome once = outcome_of(module);
  const ModuleRun r = run();
  StepTotals totals;
  Tape dropped, tape;
  Pass pass(stream(), dropped, r.batch, totals, r.key, true);
  const Routing first = module.router.forward(pass, input());
  module.visit([&](Parameter& weight) { stream().zero(weight.grad); });
  const auto [second, dx] = pass.with_tape(tape, [&] {
    const Routing again = module.router.forward(pass, input());
    return std::pair(again, module.router.backward(pass, dprobs()));
  });
  EXPECT_TRUE(tape.empty());
  EXPECT_TRUE(second.plan.row_of_slot.same_memory(first.plan.row_of_slot));
  expect_same_bits(stream(), second.probs, first.probs);
  for (const auto& [name, total] : totals.all())
    EXPECT_EQ(read_back_as_double(stream(), total), once.tensors.at("total " + name)) << name;
  EXPECT_EQ(totals.all().size(), 3u);
  EXPECT_EQ(read_back_as_double(stream(), dx), once.tensors.at("dx"));
  module.visit([&](Parameter& weight) {
    EXPECT_EQ(read_back_as_double(stream(), weight.grad), once.tensors.at(kWeightGradient));
  });
}

TEST_F(RouterTest, TotalsAddUpOverMicroBatches) {
  RouterModule module(config(0.02, 0.01), DType::F64);
  const Outcome once = outcome_of(module);
  const ModuleRun r = run();
  StepTotals totals;
  for (int micro = 0; micro < 3; ++micro) {
    Tape tape(Tape::Mode::Off);
    Pass pass(stream(), tape, r.batch, totals, r.key, true);
    module.router.forward(pass, input());
  }
  for (const auto& [name, total] : totals.all()) {
    std::vector<double> want = once.tensors.at("total " + name);
    for (double& value : want) value *= 3;
    testing::expect_close(read_back_as_double(stream(), total), want, 1e-14, 0);
  }
}

TEST_F(RouterTest, OfEqualLogitsTheLowestExpertWins) {
  MoeConfig moe = config(0, 0, true);
  moe.top_k = 1;
  RouterModule module(moe, DType::F64);
  allocate_parameters(stream(), module, 1, 2);
  module.visit([&](Parameter& weight) {  // experts 1 and 3 the same, 0 and 2 and 4 too
    std::vector<double> values = read_back_as_double(stream(), weight.value);
    std::copy_n(values.begin() + kHidden, kHidden, values.begin() + 3 * kHidden);
    std::copy_n(values.begin(), kHidden, values.begin() + 2 * kHidden);
    std::copy_n(values.begin(), kHidden, values.begin() + 4 * kHidden);
    weight.value = from_host(stream(), "weight", values, weight.shape);
  });
  const Tensor dy = random_tensor(stream(), {kTokens, 1}, DType::F64, 3);
  const Outcome outcome = run_micro_batch(stream(), module, input(), dy, run());
  const std::vector<double>& counts = outcome.tensors.at(kCounts);
  EXPECT_EQ(counts[2] + counts[3] + counts[4], 0);
  EXPECT_GT(counts[0], 0);
  EXPECT_GT(counts[1], 0);
}

// Integers, so that no count is rounded however many tokens there are.
TEST_F(RouterTest, CountsAreExactBeyondTheIntegersOfFloat) {
  RouterModule module(config(0, 0), DType::F32, "all_to:[0,3]");
  allocate_parameters(stream(), module, 1);
  const ModuleRun r = run();
  StepTotals totals;
  const Tensor total = totals.get(stream(), module.router.counts_name(), {kExperts}, DType::I64);
  const int64_t before = (int64_t{1} << 40) + 1;
  stream().copy(total,
                from_host(stream(), "before", std::vector<int64_t>(kExperts, before), {kExperts}));
  Tape tape(Tape::Mode::Off);
  Pass pass(stream(), tape, r.batch, totals, r.key, true);
  module.router.forward(pass, input(DType::F32));
  EXPECT_EQ(read_back<int64_t>(stream(), total),
            (std::vector<int64_t>{before + 15, before, before, before + 15, before}));
}

class RouterOnDevices : public DeviceTest {};

// The router computes in FP32 from BF16 activations: against the same numbers in FP64, only the
// gradient of x is rounded to BF16.
TEST_P(RouterOnDevices, IsCloseToFloat64) {
  RouterModule module(config(0.02, 0.01), dtype()), exact_module(config(0.02, 0.01), DType::F64);
  allocate_parameters(stream(), module, 1, 2);
  copy_parameters(stream(), module, reference(), exact_module);
  ModuleRun r, exact_r;
  r.batch = random_batch(stream(), 3, 5, 7, 1);
  exact_r.batch = random_batch(reference(), 3, 5, 7, 1);
  const Tensor x = random({kTokens, kHidden}, 2);
  const Tensor dy = random_tensor(stream(), {kTokens, kTopK}, accumulate(), 3);
  Outcome outcome = run_micro_batch(stream(), module, x, dy, r);
  Outcome want = run_micro_batch(reference(), exact_module, exact(x), exact(dy), exact_r);
  EXPECT_EQ(outcome.tensors.at(kCounts), want.tensors.at(kCounts));
  EXPECT_LE(relative_error(outcome.tensors.at("dx"), want.tensors.at("dx")),
            2 * epsilon_of(dtype()) + 1e-5);
  outcome.tensors.erase("dx");
  want.tensors.erase("dx");
  expect_near(outcome, want, dtype() == DType::F64 ? 1e-13 : 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Devices, RouterOnDevices, device_cases(), case_name);

}  // namespace
}  // namespace ferry::testing
