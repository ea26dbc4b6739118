#include "optim/update_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kSize = 67;  // no multiple of any vector
const UpdateScalars kScalars{.lr = 0.01, .weight_decay = 0.1, .grad_scale = 0.25, .step = 3};

class UpdateRuleTest : public DeviceTest {
 protected:
  struct Operands {
    Tensor value, grad;
    ParameterState state;
  };
  // The same ones for each call.
  Operands operands(size_t num_moments) {
    Operands made;
    made.value = random({kSize}, 1);
    made.grad = random_tensor(stream(), {kSize}, accumulate(), 2);
    made.state.master =
        dtype() == accumulate() ? made.value : random_tensor(stream(), {kSize}, accumulate(), 3);
    std::vector<double> moments = random_values(kSize, 4);
    for (double& moment : moments) moment *= moment;
    for (size_t i = 0; i < num_moments; ++i)
      made.state.moments.push_back(tensor_of(stream(), moments, {kSize}, accumulate()));
    return made;
  }
  // A copy of the tensor in host memory.
  Tensor on_host(const Tensor& tensor) {
    const Tensor host = Tensor::host(device(), "copy", tensor.shape(), tensor.dtype());
    stream().copy(host, tensor);
    return host;
  }
  void expect_same(const Operands& have, const Operands& want) {
    const auto bits = [&](const Tensor& tensor) {
      const Tensor host = on_host(tensor);
      stream().synchronize();
      return std::string(static_cast<const char*>(host.raw()), static_cast<size_t>(host.bytes()));
    };
    EXPECT_EQ(bits(have.value), bits(want.value)) << "value";
    EXPECT_EQ(bits(have.state.master), bits(want.state.master)) << "master";
    for (size_t i = 0; i < want.state.moments.size(); ++i)
      EXPECT_EQ(bits(have.state.moments[i]), bits(want.state.moments[i])) << "moment " << i;
  }
};

TEST_P(UpdateRuleTest, AdamwIsTheOpOfThisName) {
  const auto rule = make_adamw(0.8, 0.9, 1e-3);
  EXPECT_THAT(rule->moment_names(), ElementsAre("exp_avg", "exp_avg_sq"));
  const Operands have = operands(2), want = operands(2);
  rule->update(stream(), have.value, have.state, have.grad, kScalars);
  adamw(stream(), want.value, want.state.master, want.state.moments[0], want.state.moments[1],
        want.grad, {0.01, 0.8, 0.9, 1e-3, 0.1, 3, 0.25});
  expect_same(have, want);
}

TEST_P(UpdateRuleTest, SgdIsTheOpOfThisName) {
  const auto rule = make_sgd(0.8);
  EXPECT_THAT(rule->moment_names(), ElementsAre("momentum"));
  const Operands have = operands(1), want = operands(1);
  rule->update(stream(), have.value, have.state, have.grad, kScalars);
  sgd(stream(), want.value, want.state.master, want.state.moments[0], want.grad,
      {0.01, 0.8, 0.1, 0.25});
  expect_same(have, want);
}

TEST_P(UpdateRuleTest, HostAndDeviceGiveTheSameBits) {
  for (const auto& rule : {make_adamw(0.8, 0.9, 1e-3), make_sgd(0.8)}) {
    const size_t num_moments = rule->moment_names().size();
    const Operands want = operands(num_moments), source = operands(num_moments);
    rule->update(stream(), want.value, want.state, want.grad, kScalars);
    Operands have{on_host(source.value), on_host(source.grad), {}};
    have.state.master = dtype() == accumulate() ? have.value : on_host(source.state.master);
    for (const Tensor& moment : source.state.moments) have.state.moments.push_back(on_host(moment));
    stream().synchronize();
    rule->update_on_host(have.value, have.state, have.grad, kScalars);
    expect_same(have, want);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, UpdateRuleTest, device_cases(), case_name);

}  // namespace
}  // namespace ferry::testing
