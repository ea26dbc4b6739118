#include "optim/optimizer.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kTokens = 32;
constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8;

// A bf16 weight with decay and an FP32 norm without.
class OptimizerTest : public CpuTest {
 protected:
  OptimizerTest() {
    set(weight, "weight", random_values(9, 1), random_values(9, 2, 60), DType::BF16);
    set(norm, "norm", random_values(3, 3), random_values(3, 4, 60), DType::F32);
    norm.decay = false;
    settings.lr = 0.01;
    settings.clip_norm = 0;
  }
  void set(Parameter& p, const std::string& name, const std::vector<double>& values,
           const std::vector<double>& gradients, DType dtype) {
    p.name = name;
    p.shape = {static_cast<int64_t>(values.size())};
    p.dtype = dtype;
    p.value = tensor_of(stream(), values, p.shape, dtype);
    p.grad = tensor_of(stream(), gradients, p.shape, accumulate_dtype(dtype));
  }
  double norm_of(Optimizer& optimizer, double num_tokens = kTokens) {
    return gradient_norm(optimizer.sum_squares(stream()), num_tokens);
  }
  std::vector<double> values(const Tensor& tensor) { return read_back_as_double(stream(), tensor); }

  // AdamW on one parameter in double precision.
  struct Reference {
    std::vector<double> w, m, v;
    void update(const std::vector<double>& grad, const OptimizerSettings& s, int64_t step,
                double scale, double decay) {
      m.resize(w.size());
      v.resize(w.size());
      for (size_t i = 0; i < w.size(); ++i) {
        const double g = grad[i] * scale;
        m[i] = kBeta1 * m[i] + (1 - kBeta1) * g;
        v[i] = kBeta2 * v[i] + (1 - kBeta2) * g * g;
        const double mean = m[i] / (1 - std::pow(kBeta1, step));
        const double square = v[i] / (1 - std::pow(kBeta2, step));
        w[i] -= s.lr * (mean / (std::sqrt(square) + kEps) + decay * w[i]);
      }
    }
  };

  Parameter weight, norm;
  const std::unique_ptr<UpdateRule> rule = make_adamw(kBeta1, kBeta2, kEps);
  OptimizerSettings settings;
};

TEST_F(OptimizerTest, NormIsOverAllParametersAndPerToken) {
  DeviceStateStore store(stream(), {&weight, &norm}, *rule);
  Optimizer optimizer(stream(), {&weight, &norm}, *rule, store);
  double squares = 0;
  for (const Parameter* p : {&weight, &norm})
    for (const double g : values(p->grad)) squares += g * g;
  EXPECT_NEAR(norm_of(optimizer), std::sqrt(squares) / kTokens, 1e-12);
  // Each call starts from zero.
  EXPECT_NEAR(norm_of(optimizer, 1), std::sqrt(squares), 1e-10);
}

TEST_F(OptimizerTest, NormIsOfWhatTheRankOwnsAndNoCopies) {
  DeviceStateStore store(stream(), {&weight, &norm}, *rule);
  const auto squares_of = [&](const Parameter& p) {
    double sum = 0;
    for (const double g : values(p.grad)) sum += g * g;
    return sum;
  };
  Optimizer owner(stream(), {&norm}, *rule, store);
  EXPECT_NEAR(owner.sum_squares(stream()), squares_of(norm), 1e-12);
  norm.is_copy = true;
  EXPECT_EQ(owner.sum_squares(stream()), 0);
  Optimizer both(stream(), {&weight, &norm}, *rule, store);
  EXPECT_NEAR(both.sum_squares(stream()), squares_of(weight), 1e-10);
}

TEST_F(OptimizerTest, NormIsNotFiniteIfAGradientIsNot) {
  DeviceStateStore store(stream(), {&weight, &norm}, *rule);
  Optimizer optimizer(stream(), {&weight, &norm}, *rule, store);
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    norm.grad = tensor_of(stream(), {1, bad, 2}, {3}, DType::F32);
    const double gradient_norm = norm_of(optimizer);
    EXPECT_FALSE(std::isfinite(gradient_norm));
    EXPECT_THAT([&] { optimizer.update(stream(), settings, 1, kTokens, gradient_norm); },
                ThrowsMessage<Error>(HasSubstr("an update with non-finite gradients")));
  }
}

// Larger than FP32 can hold when squared.
TEST_F(OptimizerTest, NormDoesNotOverflow) {
  norm.grad = tensor_of(stream(), {3e30, 4e30, 0}, {3}, DType::F32);
  DeviceStateStore store(stream(), {&norm}, *rule);
  Optimizer optimizer(stream(), {&norm}, *rule, store);
  EXPECT_NEAR(norm_of(optimizer, 2) / 2.5e30, 1, 1e-6);
}

TEST_F(OptimizerTest, ScaleDividesByTokensAndClips) {
  EXPECT_EQ(gradient_scale(32, 0.5, 1.0), 1.0 / 32);
  EXPECT_EQ(gradient_scale(32, 4.0, 1.0), 1.0 / (4.0 + 1e-6) / 32);
  EXPECT_EQ(gradient_scale(32, 4.0, 8.0), 1.0 / 32);
  EXPECT_EQ(gradient_scale(32, 4.0, 0.0), 1.0 / 32);  // no clipping
  EXPECT_EQ(gradient_scale(32, 0.0, 1.0), 1.0 / 32);
}

TEST_F(OptimizerTest, UpdatesAreAdamwWithDecayWhereTheParameterHasIt) {
  for (const double clip_norm : {0.0, 0.3}) {
    SCOPED_TRACE(concat("clip_norm ", clip_norm));
    settings.clip_norm = clip_norm;
    DeviceStateStore store(stream(), {&weight, &norm}, *rule);
    Optimizer optimizer(stream(), {&weight, &norm}, *rule, store);
    Reference want_weight{values(store.state(weight).master), {}, {}};
    Reference want_norm{values(norm.value), {}, {}};
    for (int64_t step = 1; step <= 4; ++step) {
      settings.lr = 0.01 / static_cast<double>(step);
      weight.grad = random_tensor(stream(), {9}, DType::F32, 10 + static_cast<uint64_t>(step), 60);
      const double gradient_norm = norm_of(optimizer);
      EXPECT_GT(gradient_norm, 0.3);
      const double clip = clip_norm > 0 ? clip_norm / (gradient_norm + 1e-6) : 1.0;
      optimizer.update(stream(), settings, step, kTokens, gradient_norm);
      want_weight.update(values(weight.grad), settings, step, clip / kTokens, 0.1);
      want_norm.update(values(norm.grad), settings, step, clip / kTokens, 0);
    }
    testing::expect_close(values(store.state(weight).master), want_weight.w, 1e-6, 1e-7);
    testing::expect_close(values(store.state(weight).moments[0]), want_weight.m, 1e-5, 1e-8);
    testing::expect_close(values(store.state(weight).moments[1]), want_weight.v, 1e-5, 1e-8);
    testing::expect_close(values(norm.value), want_norm.w, 1e-6, 1e-7);
  }
}

// Decay shows alone where gradients are zero.
TEST_F(OptimizerTest, NormsHaveNoDecay) {
  stream().zero(weight.grad);
  stream().zero(norm.grad);
  DeviceStateStore store(stream(), {&weight, &norm}, *rule);
  Optimizer optimizer(stream(), {&weight, &norm}, *rule, store);
  const auto norm_before = values(norm.value), before = values(store.state(weight).master);
  optimizer.update(stream(), settings, 1, kTokens, norm_of(optimizer));
  EXPECT_EQ(values(norm.value), norm_before);
  std::vector<double> want;
  for (const double value : before) want.push_back(value * (1 - 0.01 * 0.1));
  testing::expect_close(values(store.state(weight).master), want, 1e-6, 0);
}

TEST_F(OptimizerTest, ValuesAreRoundedMasters) {
  DeviceStateStore store(stream(), {&weight, &norm}, *rule);
  Optimizer optimizer(stream(), {&weight, &norm}, *rule, store);
  settings.lr = 1e-4;  // far below the spacing of bf16: the masters must keep the small steps
  const auto start = values(store.state(weight).master);
  for (int64_t step = 1; step <= 20; ++step)
    optimizer.update(stream(), settings, step, kTokens, norm_of(optimizer));
  const auto master = values(store.state(weight).master), value = values(weight.value);
  for (size_t i = 0; i < master.size(); ++i) {
    EXPECT_EQ(value[i], static_cast<float>(BFloat16(master[i])));
    EXPECT_NEAR(std::abs(master[i] - start[i]), 20 * 1e-4, 4e-4);
  }
}

TEST_F(OptimizerTest, GradientsAreNotChanged) {
  settings.clip_norm = 0.1;
  DeviceStateStore store(stream(), {&weight, &norm}, *rule);
  Optimizer optimizer(stream(), {&weight, &norm}, *rule, store);
  const auto before = values(weight.grad);
  optimizer.update(stream(), settings, 1, kTokens, norm_of(optimizer));
  EXPECT_EQ(values(weight.grad), before);
}

}  // namespace
}  // namespace ferry::testing
