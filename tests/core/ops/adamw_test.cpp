#include "core/ops/adamw.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr AdamwSettings kSettings{.lr = 3e-3,
                                  .beta1 = 0.9,
                                  .beta2 = 0.95,
                                  .eps = 1e-8,
                                  .weight_decay = 0.1,
                                  .step = 3,
                                  .grad_scale = 0.37};

// Rounds to S and hides the value from the compiler, so that no two operations can be fused.
template <class S>
S rounded(S value) {
  volatile S stored = value;
  return stored;
}

template <class S>
struct State {
  S master, m, v;
};

// The rule of adamw.h, one rounded operation per line.
template <class S>
State<S> expected_update(State<S> s, S grad, const AdamwSettings& settings) {
  const double step = static_cast<double>(settings.step);
  const S take1 = static_cast<S>(1 - settings.beta1), take2 = static_cast<S>(1 - settings.beta2);
  const S correction1 = static_cast<S>(1 - std::pow(settings.beta1, step));
  const S correction2 = static_cast<S>(1 - std::pow(settings.beta2, step));
  const S g = rounded<S>(grad * static_cast<S>(settings.grad_scale));
  const S m_gap = rounded<S>(g - s.m);
  const S m_change = rounded<S>(take1 * m_gap);
  s.m = rounded<S>(s.m + m_change);
  const S square = rounded<S>(g * g);
  const S v_gap = rounded<S>(square - s.v);
  const S v_change = rounded<S>(take2 * v_gap);
  s.v = rounded<S>(s.v + v_change);
  const S m_hat = rounded<S>(s.m / correction1);
  const S v_hat = rounded<S>(s.v / correction2);
  const S root = rounded<S>(std::sqrt(v_hat));
  const S divisor = rounded<S>(root + static_cast<S>(settings.eps));
  const S update = rounded<S>(m_hat / divisor);
  const S decay = rounded<S>(static_cast<S>(settings.weight_decay) * s.master);
  const S direction = rounded<S>(update + decay);
  const S change = rounded<S>(static_cast<S>(settings.lr) * direction);
  s.master = rounded<S>(s.master - change);
  return s;
}

class AdamwOp : public DeviceTest {
 protected:
  Tensor state(int64_t n, uint64_t seed, double scale = 1) {
    return random_tensor(stream(), {n}, accumulate(), seed, scale);
  }
  Tensor squares(int64_t n, uint64_t seed) {
    std::vector<double> values = random_values(n, seed);
    for (double& value : values) value = value * value * 1e-3;
    return tensor_of(stream(), values, {n}, accumulate());
  }

  // One update of n elements, compared bit for bit.
  template <class T>
  void expect_bits(int64_t n) {
    using S = compute_t<T>;
    SCOPED_TRACE(n);
    const Tensor value = output({n}), master = state(n, 1), m = state(n, 2, .1);
    const Tensor v = squares(n, 3), grad = state(n, 4);
    const auto old_master = read_back<S>(stream(), master), old_m = read_back<S>(stream(), m);
    const auto old_v = read_back<S>(stream(), v), g = read_back<S>(stream(), grad);
    adamw(stream(), value, master, m, v, grad, kSettings);

    std::vector<S> want_master, want_m, want_v;
    std::vector<T> want_value;
    for (int64_t i = 0; i < n; ++i) {
      const State<S> after =
          expected_update<S>({old_master[i], old_m[i], old_v[i]}, g[i], kSettings);
      want_master.push_back(after.master);
      want_m.push_back(after.m);
      want_v.push_back(after.v);
      want_value.push_back(T(after.master));
    }
    expect_same_bits(stream(), m, from_host(stream(), "want", want_m, {n}));
    expect_same_bits(stream(), v, from_host(stream(), "want", want_v, {n}));
    expect_same_bits(stream(), master, from_host(stream(), "want", want_master, {n}));
    expect_same_bits(stream(), value, from_host(stream(), "want", want_value, {n}));
  }
};

TEST_P(AdamwOp, FollowsTheRuleBitForBit) {
  for (const int64_t n : {0, 1, 63, 64, 65, 127, 129, 100001}) {
    dispatch_float(dtype(), [&]<class T>() { expect_bits<T>(n); });
  }
}

TEST_P(AdamwOp, FirstStepMovesByTheLearningRate) {
  // m_hat / sqrt(v_hat) is the sign of the gradient at step 1.
  const DType s = accumulate();
  const Tensor value = output({3}), master = tensor_of(stream(), {1, 2, 4}, {3}, s);
  const Tensor m = zeros(stream(), {3}, s), v = zeros(stream(), {3}, s);
  adamw(stream(), value, master, m, v, tensor_of(stream(), {5, -2, 0}, {3}, s),
        {.lr = 0.25, .weight_decay = 0, .step = 1});
  testing::expect_close(read_back_as_double(stream(), master), {.75, 2.25, 4}, 1e-6, 0);
  testing::expect_close(read_back_as_double(stream(), value), {.75, 2.25, 4}, 0x1p-8, 0);
}

TEST_P(AdamwOp, DecayIsDecoupledFromTheGradient) {
  const DType s = accumulate();
  const Tensor value = output({2}), master = tensor_of(stream(), {1, -2}, {2}, s);
  const Tensor m = zeros(stream(), {2}, s), v = zeros(stream(), {2}, s);
  adamw(stream(), value, master, m, v, zeros(stream(), {2}, s),
        {.lr = 0.5, .weight_decay = 0.5, .step = 1});
  testing::expect_close(read_back_as_double(stream(), master), {.75, -1.5}, 0, 0);
  testing::expect_close(read_back_as_double(stream(), m), {0, 0}, 0, 0);
}

TEST_P(AdamwOp, MasterMayBeTheValue) {
  const Tensor value = output({129}, accumulate()), master = state(129, 1), both = state(129, 1);
  const Tensor grad = state(129, 4);
  adamw(stream(), value, master, state(129, 2), squares(129, 3), grad, kSettings);
  adamw(stream(), both, both, state(129, 2), squares(129, 3), grad, kSettings);
  expect_same_bits(stream(), both, value);
  expect_same_bits(stream(), both, master);
}

TEST_P(AdamwOp, RefusesWrongArguments) {
  const Tensor value = output({8}), s = state(8, 1), short_state = state(7, 1);
  EXPECT_THAT([&] { adamw(stream(), value, s, s, s, short_state, kSettings); },
              ThrowsMessage<Error>(HasSubstr("state of shape [7] for a parameter of shape [8]")));
  EXPECT_THAT([&] { adamw(stream(), value, output({8}, DType::I32), s, s, s, kSettings); },
              ThrowsMessage<Error>(HasSubstr("state is i32 for ")));
  AdamwSettings settings = kSettings;
  settings.step = 0;
  EXPECT_THAT([&] { adamw(stream(), value, s, s, s, s, settings); },
              ThrowsMessage<Error>(HasSubstr("step 0")));
}

INSTANTIATE_TEST_SUITE_P(Devices, AdamwOp, device_cases(), case_name);

}  // namespace
}  // namespace ferry::testing
