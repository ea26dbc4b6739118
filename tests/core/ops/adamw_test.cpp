#include "core/ops/adamw.h"

#include <gmock/gmock.h>

#include <cmath>

#include "core/ops/adamw_kernels.h"
#include "tests/core/ops/hard_values.h"
#include "tests/core/ops/host_tensors.h"
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

// Elements of one parameter on the host, T its value, M and V its moments.
template <class T, class M, class V>
struct Update {
  using S = compute_t<T>;
  std::vector<S> master;
  std::vector<M> m;
  std::vector<V> v;
  std::vector<S> grad;
  std::vector<T> value;

  int64_t size() const { return static_cast<int64_t>(master.size()); }

  Update after(const AdamwSettings& settings) const {
    Update result = *this;
    result.value.clear();
    for (size_t i = 0; i < master.size(); ++i) {
      const State<S> state = expected_update<S>(
          {master[i], static_cast<S>(m[i]), static_cast<S>(v[i])}, grad[i], settings);
      result.master[i] = state.master;
      result.m[i] = M(state.m);
      result.v[i] = V(state.v);
      result.value.push_back(T(state.master));
    }
    return result;
  }

  Update with_one_nan() const {
    return {testing::with_one_nan(master), testing::with_one_nan(m), testing::with_one_nan(v),
            testing::with_one_nan(grad), testing::with_one_nan(value)};
  }
};

template <class T, class M, class V>
void expect_same_update(const Update<T, M, V>& actual, const Update<T, M, V>& expected) {
  expect_same_elements(actual.m, expected.m, "exp_avg");
  expect_same_elements(actual.v, expected.v, "exp_avg_sq");
  expect_same_elements(actual.master, expected.master, "master");
  expect_same_elements(actual.value, expected.value, "value");
  expect_same_elements(actual.grad, expected.grad, "grad");
}

template <class E>
std::vector<E> rounded_values(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

// Whatever bits a float can have, everywhere.
template <class T, class M, class V>
Update<T, M, V> hard_update(int64_t n) {
  return {rounded_values<compute_t<T>>(hard_values(n, 1)), rounded_values<M>(hard_values(n, 2)),
          rounded_values<V>(hard_values(n, 3)), rounded_values<compute_t<T>>(hard_values(n, 4)),
          std::vector<T>(static_cast<size_t>(n))};
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

  template <class T, class M, class V>
  Update<T, M, V> run(const Update<T, M, V>& before) {
    const Shape shape{before.size()};
    const Tensor value = output(shape), master = from_host(stream(), "t", before.master, shape);
    const Tensor m = from_host(stream(), "t", before.m, shape);
    const Tensor v = from_host(stream(), "t", before.v, shape);
    const Tensor grad = from_host(stream(), "t", before.grad, shape);
    adamw(stream(), value, master, m, v, grad, kSettings);
    using S = compute_t<T>;
    return {read_back<S>(stream(), master), read_back<M>(stream(), m), read_back<V>(stream(), v),
            read_back<S>(stream(), grad), read_back<T>(stream(), value)};
  }

  // Numbers such as training has, compared bit for bit.
  template <class T, class M, class V>
  void expect_bits(int64_t n) {
    using S = compute_t<T>;
    SCOPED_TRACE(n);
    const auto numbers = [&]<class E>(uint64_t seed, double scale) {
      std::vector<E> elements;
      for (const double value : random_values(n, seed, scale)) elements.push_back(E(S(value)));
      return elements;
    };
    Update<T, M, V> before{numbers.template operator()<S>(1, 1),
                           numbers.template operator()<M>(2, .1),
                           numbers.template operator()<V>(3, 1e-3),
                           numbers.template operator()<S>(4, 1), std::vector<T>()};
    for (V& square : before.v) square = V(std::abs(static_cast<S>(square)));
    expect_same_update(run(before), before.after(kSettings));
  }
};

TEST_P(AdamwOp, FollowsTheRuleBitForBit) {
  for (const int64_t n : {0, 1, 63, 64, 65, 127, 129, 100001}) {
    dispatch_float(dtype(), [&]<class T>() { expect_bits<T, compute_t<T>, compute_t<T>>(n); });
  }
}

TEST_P(AdamwOp, RoundsEachMomentThatIsBf16) {
  if (accumulate() != DType::F32) GTEST_SKIP() << "the moments of F64 are F64";
  for (const int64_t n : {0, 1, 67, 100001}) {
    dispatch_float(dtype(), [&]<class T>() {
      if constexpr (!std::is_same_v<T, double>) {
        expect_bits<T, BFloat16, BFloat16>(n);
        expect_bits<T, BFloat16, float>(n);
        expect_bits<T, float, BFloat16>(n);
      }
    });
  }
}

TEST_P(AdamwOp, TreatsAllBitPatternsAlikeOnAllDevices) {
  dispatch_float(dtype(), [&]<class T>() {
    const auto before = hard_update<T, compute_t<T>, compute_t<T>>(100003);
    expect_same_update(run(before).with_one_nan(), before.after(kSettings).with_one_nan());
  });
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

TEST_P(AdamwOp, MomentsHaveTheDtypeOfTheStateOrBf16) {
  const Tensor value = output({8}), s = state(8, 1), bf16 = output({8}, DType::BF16);
  EXPECT_THAT([&] { adamw(stream(), value, bf16, s, s, s, kSettings); },
              ThrowsMessage<Error>(HasSubstr("state is bf16 for ")));
  EXPECT_THAT([&] { adamw(stream(), value, s, s, s, bf16, kSettings); },
              ThrowsMessage<Error>(HasSubstr("state is bf16 for ")));
  const auto update = [&] { adamw(stream(), value, s, bf16, bf16, s, kSettings); };
  if (accumulate() == DType::F64) {
    EXPECT_THAT(update, ThrowsMessage<Error>(HasSubstr("state is bf16 for f64")));
  } else {
    update();
    stream().synchronize();
  }
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

class AdamwOnHost : public HostTensorTest {
 protected:
  // `offset` elements from an aligned address on; value and master may share memory.
  template <class T, class M, class V>
  Update<T, M, V> run(VectorLevel level, const Update<T, M, V>& before, int64_t offset,
                      bool shared = false) {
    using S = compute_t<T>;
    const Tensor master = placed(before.master, offset), m = placed(before.m, offset);
    const Tensor v = placed(before.v, offset), grad = placed(before.grad, offset);
    const Tensor value = shared ? master : placed(before.value, offset);
    cpu::adamw_at(level, value, master, m, v, grad, kSettings);
    return {elements_of<S>(master), elements_of<M>(m), elements_of<V>(v), elements_of<S>(grad),
            elements_of<T>(value)};
  }

  template <class T, class M, class V>
  void expect_levels_follow_the_rule() {
    for (const VectorLevel level : vector_levels())
      for (const int64_t n : {0, 1, 31, 32, 33, 100, 16383, 16384, 16500, 40001})
        for (const int64_t offset : {0, 1, 7, 32}) {
          SCOPED_TRACE(concat(name_of(level), ", ", n, " elements from ", offset));
          const auto before = hard_update<T, M, V>(n);
          expect_same_update(run(level, before, offset).with_one_nan(),
                             before.after(kSettings).with_one_nan());
        }
  }
};

TEST_F(AdamwOnHost, AllLevelsFollowTheRule) {
  expect_levels_follow_the_rule<BFloat16, float, float>();
  expect_levels_follow_the_rule<float, float, float>();
}
TEST_F(AdamwOnHost, AllLevelsFollowTheRuleInDouble) {
  expect_levels_follow_the_rule<double, double, double>();
}
TEST_F(AdamwOnHost, AllLevelsRoundMoments) {
  expect_levels_follow_the_rule<BFloat16, BFloat16, BFloat16>();
  expect_levels_follow_the_rule<BFloat16, BFloat16, float>();
  expect_levels_follow_the_rule<float, float, BFloat16>();
}

TEST_F(AdamwOnHost, MasterMayBeTheValueAtAllLevels) {
  const auto before = hard_update<float, float, float>(20011);
  for (const VectorLevel level : vector_levels()) {
    SCOPED_TRACE(name_of(level));
    expect_same_update(run(level, before, 3, true).with_one_nan(),
                       before.after(kSettings).with_one_nan());
  }
}

TEST_F(AdamwOnHost, KeepsThePayloadOfAnOnlyNan) {
  // In turn one input of four is a NaN; the others are numbers.
  const std::vector<double> numbers = random_values(4 * 20000, 5);
  Update<BFloat16, float, float> before;
  for (size_t i = 0; i < 20000; ++i) {
    float x[4];
    for (size_t k = 0; k < 4; ++k) x[k] = static_cast<float>(std::abs(numbers[4 * i + k]));
    const auto payload = static_cast<uint32_t>(i % 2 == 0 ? 0x7fc00000u : 0xffc00000u);
    x[i % 4] = std::bit_cast<float>(payload | static_cast<uint32_t>(i << 6));
    before.master.push_back(x[0]);
    before.m.push_back(x[1]);
    before.v.push_back(x[2]);
    before.grad.push_back(x[3]);
  }
  before.value.resize(before.master.size());
  const auto after = before.after(kSettings);
  EXPECT_EQ(std::bit_cast<uint32_t>(after.master[4]), 0x7fc00100u);
  for (const VectorLevel level : vector_levels()) {
    SCOPED_TRACE(name_of(level));
    expect_same_update(run(level, before, 0), after);
  }
}

TEST_F(AdamwOnHost, IsTheOpOfTheCpu) {
  const auto before = hard_update<BFloat16, float, float>(20011);
  const Tensor value = placed(before.value, 1), master = placed(before.master, 1);
  const Tensor m = placed(before.m, 1), v = placed(before.v, 1), grad = placed(before.grad, 1);
  adamw_on_host(value, master, m, v, grad, kSettings);
  const Tensor op_value = placed(before.value, 1), op_master = placed(before.master, 1);
  const Tensor op_m = placed(before.m, 1), op_v = placed(before.v, 1);
  adamw(stream(), op_value, op_master, op_m, op_v, grad, kSettings);
  expect_same_bits(stream(), value, op_value);
  expect_same_bits(stream(), master, op_master);
  expect_same_bits(stream(), m, op_m);
  expect_same_bits(stream(), v, op_v);
}

TEST_F(AdamwOnHost, RefusesWrongArguments) {
  const Tensor s = Tensor::host(device(), "t", {8}, DType::F32);
  AdamwSettings settings = kSettings;
  settings.step = 0;
  EXPECT_THAT([&] { adamw_on_host(s, s, s, s, s, settings); },
              ThrowsMessage<Error>(HasSubstr("step 0")));
  EXPECT_THAT([&] { adamw_on_host(s, s, s, s, s.rows(0, 7), kSettings); },
              ThrowsMessage<Error>(HasSubstr("state of shape [7] for a parameter of shape [8]")));
}

TEST_F(AdamwOnHost, RefusesMemoryOfAGpu) {
  if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  const Tensor s = Tensor::host(device(), "t", {8}, DType::F32);
  const auto gpu = make_cuda_device(0);
  const auto gpu_stream = gpu->make_stream("test");
  const Tensor elsewhere = Tensor::empty(*gpu_stream, "t", {8}, DType::F32);
  EXPECT_THAT([&] { adamw_on_host(s, s, s, s, elsewhere, kSettings); },
              ThrowsMessage<Error>(HasSubstr("a tensor of shape [8] is not in host memory")));
}

}  // namespace
}  // namespace ferry::testing
