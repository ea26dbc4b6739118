#include "core/ops/sgd.h"

#include <gmock/gmock.h>

#include <cmath>

#include "core/ops/sgd_kernels.h"
#include "tests/core/ops/hard_values.h"
#include "tests/core/ops/host_tensors.h"
#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr SgdSettings kSettings{
    .lr = 3e-3, .momentum = 0.9, .weight_decay = 0.1, .grad_scale = 0.37};

// Elements of one parameter, T its value, M its momentum.
template <class T, class M>
struct Update {
  using S = compute_t<T>;
  std::vector<S> master;
  std::vector<M> buffer;
  std::vector<S> grad;
  std::vector<T> value;

  Shape shape() const { return {static_cast<int64_t>(master.size())}; }

  // The rule of sgd.h, one rounded operation per line.
  Update after(const SgdSettings& settings) const {
    const S scale = static_cast<S>(settings.grad_scale), lr = static_cast<S>(settings.lr);
    const S momentum = static_cast<S>(settings.momentum);
    const S weight_decay = static_cast<S>(settings.weight_decay);
    Update result = *this;
    result.value.clear();
    for (size_t i = 0; i < master.size(); ++i) {
      const S scaled = rounded<S>(grad[i] * scale);
      const S decay = rounded<S>(weight_decay * master[i]);
      const S g = rounded<S>(scaled + decay);
      const S kept = rounded<S>(momentum * static_cast<S>(buffer[i]));
      const S m = rounded<S>(kept + g);
      const S change = rounded<S>(lr * m);
      result.buffer[i] = M(m);
      result.master[i] = rounded<S>(master[i] - change);
      result.value.push_back(T(result.master[i]));
    }
    return result;
  }
};

// NaNs count as equal where both are NaN.
template <class T, class M>
void expect_same_update(const Update<T, M>& actual, const Update<T, M>& expected) {
  expect_same_elements(with_one_nan(actual.buffer), with_one_nan(expected.buffer), "buffer");
  expect_same_elements(with_one_nan(actual.master), with_one_nan(expected.master), "master");
  expect_same_elements(with_one_nan(actual.value), with_one_nan(expected.value), "value");
  expect_same_elements(actual.grad, expected.grad, "grad");
}

template <class E>
std::vector<E> rounded_values(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

// Whatever bits a float can have, everywhere.
template <class T, class M>
Update<T, M> hard_update(int64_t n) {
  return {rounded_values<compute_t<T>>(hard_values(n, 1)), rounded_values<M>(hard_values(n, 2)),
          rounded_values<compute_t<T>>(hard_values(n, 3)), std::vector<T>(static_cast<size_t>(n))};
}

class SgdOp : public DeviceTest {
 protected:
  template <class T, class M>
  void expect_rule(int64_t n) {
    SCOPED_TRACE(n);
    using S = compute_t<T>;
    const auto before = hard_update<T, M>(n);
    const Tensor value = output(before.shape());
    const Tensor master = from_host(stream(), "t", before.master, before.shape());
    const Tensor buffer = from_host(stream(), "t", before.buffer, before.shape());
    const Tensor grad = from_host(stream(), "t", before.grad, before.shape());
    sgd(stream(), value, master, buffer, grad, kSettings);
    expect_same_update({read_back<S>(stream(), master), read_back<M>(stream(), buffer),
                        read_back<S>(stream(), grad), read_back<T>(stream(), value)},
                       before.after(kSettings));
  }
};

TEST_P(SgdOp, FollowsTheRuleBitForBit) {
  for (const int64_t n : {0, 1, 63, 64, 65, 127, 129, 100001})
    dispatch_float(dtype(), [&]<class T>() { expect_rule<T, compute_t<T>>(n); });
}

TEST_P(SgdOp, RoundsMomentumThatIsBf16) {
  if (accumulate() != DType::F32) GTEST_SKIP() << "the momentum of F64 is F64";
  for (const int64_t n : {0, 1, 67, 100001})
    dispatch_float(dtype(), [&]<class T>() {
      if constexpr (!std::is_same_v<T, double>) expect_rule<T, BFloat16>(n);
    });
}

TEST_P(SgdOp, GathersMomentumAndDecay) {
  const DType s = accumulate();
  const Tensor value = output({2}), master = tensor_of(stream(), {1, -2}, {2}, s);
  const Tensor buffer = tensor_of(stream(), {4, 0}, {2}, s);
  const Tensor grad = tensor_of(stream(), {2, 8}, {2}, s);
  const SgdSettings settings{.lr = .25, .momentum = .5, .weight_decay = .5, .grad_scale = .25};
  sgd(stream(), value, master, buffer, grad, settings);
  // g = {1, 1}; m = {3, 1}
  testing::expect_close(read_back_as_double(stream(), buffer), {3, 1}, 0, 0);
  testing::expect_close(read_back_as_double(stream(), master), {.25, -2.25}, 0, 0);
  testing::expect_close(read_back_as_double(stream(), value), {.25, -2.25}, 0, 0);
}

TEST_P(SgdOp, MasterMayBeTheValue) {
  const auto state = [&](uint64_t seed) {
    return random_tensor(stream(), {129}, accumulate(), seed);
  };
  const Tensor value = output({129}, accumulate()), master = state(1), both = state(1);
  sgd(stream(), value, master, state(2), state(3), kSettings);
  sgd(stream(), both, both, state(2), state(3), kSettings);
  expect_same_bits(stream(), both, value);
  expect_same_bits(stream(), both, master);
}

TEST_P(SgdOp, RefusesWrongArguments) {
  const Tensor value = output({8}), s = output({8}, accumulate()), bf16 = output({8}, DType::BF16);
  EXPECT_THAT([&] { sgd(stream(), value, s, s, output({7}, accumulate()), kSettings); },
              ThrowsMessage<Error>(HasSubstr("state of shape [7] for a parameter of shape [8]")));
  EXPECT_THAT([&] { sgd(stream(), value, bf16, s, s, kSettings); },
              ThrowsMessage<Error>(HasSubstr("state is bf16 for ")));
  EXPECT_THAT([&] { sgd(stream(), value, s, output({8}, DType::I32), s, kSettings); },
              ThrowsMessage<Error>(HasSubstr("state is i32 for ")));
  EXPECT_THAT([&] { sgd(stream(), Tensor(), s, s, s, kSettings); },
              ThrowsMessage<Error>(HasSubstr("value is undefined")));
  if (accumulate() == DType::F64) {
    EXPECT_THAT([&] { sgd(stream(), value, s, bf16, s, kSettings); },
                ThrowsMessage<Error>(HasSubstr("state is bf16 for f64")));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, SgdOp, device_cases(), case_name);

class SgdOnHost : public HostTensorTest {
 protected:
  template <class T, class M>
  void expect_levels_follow_the_rule() {
    for (const VectorLevel level : vector_levels())
      for (const int64_t n : {0, 1, 31, 32, 33, 100, 16383, 16384, 40001})
        for (const int64_t offset : {0, 1, 32}) {
          SCOPED_TRACE(concat(name_of(level), ", ", n, " elements from ", offset));
          const auto before = hard_update<T, M>(n);
          const Tensor value = placed(before.value, offset);
          const Tensor master = placed(before.master, offset);
          const Tensor buffer = placed(before.buffer, offset);
          const Tensor grad = placed(before.grad, offset);
          cpu::sgd_at(level, value, master, buffer, grad, kSettings);
          expect_same_update({elements_of<compute_t<T>>(master), elements_of<M>(buffer),
                              elements_of<compute_t<T>>(grad), elements_of<T>(value)},
                             before.after(kSettings));
        }
  }
};

TEST_F(SgdOnHost, AllLevelsFollowTheRule) {
  expect_levels_follow_the_rule<BFloat16, float>();
  expect_levels_follow_the_rule<BFloat16, BFloat16>();
  expect_levels_follow_the_rule<float, float>();
  expect_levels_follow_the_rule<float, BFloat16>();
  expect_levels_follow_the_rule<double, double>();
}

TEST_F(SgdOnHost, IsTheOpOfTheCpu) {
  const auto before = hard_update<BFloat16, float>(20011);
  const Tensor value = placed(before.value, 1), master = placed(before.master, 1);
  const Tensor buffer = placed(before.buffer, 1), grad = placed(before.grad, 1);
  sgd_on_host(value, master, buffer, grad, kSettings);
  const Tensor op_value = placed(before.value, 1), op_master = placed(before.master, 1);
  const Tensor op_buffer = placed(before.buffer, 1);
  sgd(stream(), op_value, op_master, op_buffer, grad, kSettings);
  expect_same_bits(stream(), value, op_value);
  expect_same_bits(stream(), master, op_master);
  expect_same_bits(stream(), buffer, op_buffer);
}

TEST_F(SgdOnHost, RefusesWrongArguments) {
  const Tensor s = Tensor::host(device(), "t", {8}, DType::F32);
  EXPECT_THAT([&] { sgd_on_host(s, s, s, s.rows(0, 7), kSettings); },
              ThrowsMessage<Error>(HasSubstr("state of shape [7] for a parameter of shape [8]")));
}

TEST_F(SgdOnHost, RefusesMemoryOfAGpu) {
  if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  const Tensor s = Tensor::host(device(), "t", {8}, DType::F32);
  const auto gpu = make_cuda_device(0);
  const auto gpu_stream = gpu->make_stream("test");
  const Tensor elsewhere = Tensor::empty(*gpu_stream, "t", {8}, DType::F32);
  EXPECT_THAT([&] { sgd_on_host(s, s, elsewhere, s, kSettings); },
              ThrowsMessage<Error>(HasSubstr("a tensor of shape [8] is not in host memory")));
}

}  // namespace
}  // namespace ferry::testing
