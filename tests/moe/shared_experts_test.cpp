#include "moe/shared_experts.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/devices.h"
#include "tests/support/micro_batch.h"

namespace ferry::testing {
namespace {

class SharedExpertsTest : public CpuTest {
 protected:
  Tensor input() { return random_tensor(stream(), {9, 6}, DType::F64, 2); }
  MlpConfig config{6, 5, 0.02, 0.005, DType::F64};
};

TEST_F(SharedExpertsTest, DescribesItsParameters) {
  for (const bool gate : {false, true}) {
    std::vector<std::string> names, want = {"shared/fc1/weight[10, 6]", "shared/fc2/weight[6, 5]"};
    if (gate) want.push_back("shared/gate/weight[1, 6]");
    SharedExperts("shared", config, gate).visit([&](Parameter& parameter) {
      names.push_back(concat(parameter.name, parameter.shape));
      EXPECT_EQ(parameter.axis, ReduceAxis::Dense);
    });
    EXPECT_EQ(names, want);
  }
}

TEST_F(SharedExpertsTest, TensorParallelRanksHaveAPartOfTheMlpAndAllOfTheGate) {
  config.ffn = 8;
  std::vector<std::string> described;
  SharedExperts("shared", config, true, {.rank = 1, .size = 2}).visit([&](Parameter& p) {
    described.push_back(concat(p.name, p.shape, " of ", p.global_shape(),
                               p.axis == ReduceAxis::Stage ? " stage" : ""));
    EXPECT_FALSE(p.is_copy);
  });
  EXPECT_EQ(described, (std::vector<std::string>{"shared/fc1/weight[8, 6] of [16, 6]",
                                                 "shared/fc2/weight[6, 4] of [6, 8]",
                                                 "shared/gate/weight[1, 6] of [1, 6] stage"}));
}

TEST_F(SharedExpertsTest, GateMultipliesTheOutputOfTheMlp) {
  SharedExperts shared("shared", config, true);
  Mlp mlp("shared", config, Label::Mlp);
  allocate_parameters(stream(), shared, 1);
  copy_parameters(stream(), shared, stream(), mlp);
  const Tensor x = input();
  const auto y = run_micro_batch(stream(), shared, x, x, {}).tensors.at("y");
  std::vector<double> want = run_micro_batch(stream(), mlp, x, x, {}).tensors.at("y");
  std::vector<double> gate;
  shared.visit([&](Parameter& p) { gate = read_back_as_double(stream(), p.value); });  // the last
  const auto in = read_back_as_double(stream(), x);
  for (size_t t = 0; t < 9; ++t) {
    double logit = 0;
    for (size_t i = 0; i < 6; ++i) logit += in[t * 6 + i] * gate[i];
    for (size_t i = 0; i < 6; ++i) want[t * 6 + i] /= 1 + std::exp(-logit);
  }
  testing::expect_close(y, want, 1e-13, 1e-15);
}

TEST_F(SharedExpertsTest, GradientsMatchDifferenceQuotients) {
  for (const bool gate : {false, true}) {
    SCOPED_TRACE(gate ? "with gate" : "without gate");
    SharedExperts shared("shared", config, gate);
    allocate_parameters(stream(), shared, 1);
    expect_gradients(stream(), shared, input());
  }
}

}  // namespace
}  // namespace ferry::testing
