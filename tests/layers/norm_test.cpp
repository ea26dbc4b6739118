#include "layers/norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/ops/elementwise.h"
#include "tests/layers/over_ranks.h"
#include "tests/support/devices.h"
#include "tests/support/micro_batch.h"

namespace ferry::testing {
namespace {

// {x + branch, norm(x + branch)} as one module: y = (x + branch) + norm(x + branch). The branch is
// a parameter, so that its gradient is checked too.
class NormOfSum final : public Module {
 public:
  explicit NormOfSum(Shape shape) {
    branch_.name = "branch";
    branch_.shape = shape;
    branch_.dtype = DType::F64;
  }
  Tensor forward(Pass& pass, const Tensor& x) override {
    const auto [sum, normed] = norm_.forward_add(pass, x, branch_.value);
    const Tensor y = Tensor::empty(pass.stream, "y", x.shape(), x.dtype());
    add(pass.stream, y, sum, normed);
    return y;
  }
  Tensor backward(Pass& pass, const Tensor& dy) override {
    const Tensor dsum = norm_.backward_add(pass, dy, dy);
    accumulate(pass.stream, branch_.grad, dsum);
    return dsum;
  }
  void visit(const ParameterVisitor& visitor) override {
    norm_.visit(visitor);
    visitor(branch_);
  }

 private:
  RmsNorm norm_{"norm", 6, DType::F64, 1e-5, Label::MlpNorm};
  Parameter branch_;
};

class NormTest : public CpuTest {
 protected:
  RmsNorm norm{"layers/1/attn_norm", 6, DType::F64, 1e-5, Label::AttnNorm};
};

TEST_F(NormTest, DescribesItsParameter) {
  norm.visit([](Parameter& weight) {
    EXPECT_EQ(weight.name, "layers/1/attn_norm/weight");
    EXPECT_EQ(weight.shape, (Shape{6}));
    EXPECT_EQ(weight.init.constant, 1);
    EXPECT_EQ(weight.init.std, 0);
    EXPECT_FALSE(weight.decay);
  });
}

TEST_F(NormTest, IsTheFormula) {
  allocate_parameters(stream(), norm, 1);
  const Tensor x = random_tensor(stream(), {4, 6}, DType::F64, 2);
  const std::vector<double> in = read_back_as_double(stream(), x);
  std::vector<double> weight, want;
  norm.visit([&](Parameter& p) { weight = read_back_as_double(stream(), p.value); });
  for (size_t row = 0; row < 4; ++row) {
    double squares = 0;
    for (size_t i = 0; i < 6; ++i) squares += in[row * 6 + i] * in[row * 6 + i];
    for (size_t i = 0; i < 6; ++i)
      want.push_back(in[row * 6 + i] / std::sqrt(squares / 6 + 1e-5) * weight[i]);
  }
  const Outcome outcome = run_micro_batch(stream(), norm, x, x, {});
  testing::expect_close(outcome.tensors.at("y"), want, 1e-13, 1e-14);
}

TEST_F(NormTest, GradientsMatchDifferenceQuotients) {
  allocate_parameters(stream(), norm, 1);
  expect_gradients(stream(), norm, random_tensor(stream(), {9, 6}, DType::F64, 2));
}

TEST_F(NormTest, GradientsOfSumAndNormMatchDifferenceQuotients) {
  NormOfSum module({9, 6});
  allocate_parameters(stream(), module, 1);
  expect_gradients(stream(), module, random_tensor(stream(), {9, 6}, DType::F64, 2));
}

TEST_F(NormTest, OutputCanBeRebuilt) {
  allocate_parameters(stream(), norm, 1);
  const Tensor x = random_tensor(stream(), {9, 6}, DType::F64, 2);
  DiscardPolicy policy({Label::Layernorm});
  Tape tape(Tape::Mode::Record, &policy);
  StepTotals totals;
  const Batch batch;
  Pass pass(stream(), tape, batch, totals, {}, true);
  const Tensor y = norm.forward(pass, x);
  tape.save(stream(), Label::QkvLinear, {y});
  const auto [rebuilt] = tape.load<1>(stream(), Label::QkvLinear);
  EXPECT_FALSE(rebuilt.same_memory(y));
  expect_same_bits(stream(), rebuilt, y);
}

TEST_F(NormTest, RanksGiveWhatOneRankGives) {
  OverRanks test;
  test.make = [](const TensorParallel& tensor) {
    return std::make_unique<RmsNorm>("norm", 6, DType::F64, 1e-5, Label::AttnNorm, tensor);
  };
  test.x = test.dy = {12, 6};
  expect_same_over_ranks(test);
}

TEST_F(NormTest, DescribesWhoSumsItsGradient) {
  const auto described = [](const TensorParallel& tensor) {
    Parameter weight;
    RmsNorm("norm", 6, DType::F64, 1e-5, Label::AttnNorm, tensor).visit([&](Parameter& p) {
      weight = p;
    });
    EXPECT_FALSE(weight.part);
    return weight;
  };
  EXPECT_EQ(described({nullptr, 1, 2, true}).axis, ReduceAxis::Stage);
  EXPECT_FALSE(described({nullptr, 1, 2, true}).is_copy);
  EXPECT_EQ(described({nullptr, 1, 2, false}).axis, ReduceAxis::Dense);
  EXPECT_TRUE(described({nullptr, 1, 2, false}).is_copy);
  EXPECT_FALSE(described({nullptr, 0, 2, false}).is_copy);
  EXPECT_FALSE(described({}).is_copy);
}

}  // namespace
}  // namespace ferry::testing
