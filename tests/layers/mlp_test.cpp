#include "layers/mlp.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/layers/over_ranks.h"
#include "tests/support/devices.h"
#include "tests/support/micro_batch.h"

namespace ferry::testing {
namespace {

MlpConfig small(DType dtype) { return {6, 10, 0.02, 0.005, dtype}; }

class MlpTest : public CpuTest {};

TEST_F(MlpTest, DescribesItsParameters) {
  Mlp mlp("layers/2/mlp", small(DType::F32), Label::Mlp);
  std::vector<std::string> names;
  std::vector<double> stds;
  mlp.visit([&](Parameter& parameter) {
    names.push_back(concat(parameter.name, parameter.shape));
    stds.push_back(parameter.init.std);
    EXPECT_TRUE(parameter.decay);
  });
  EXPECT_EQ(names, (std::vector<std::string>{"layers/2/mlp/fc1/weight[20, 6]",
                                             "layers/2/mlp/fc2/weight[6, 10]"}));
  EXPECT_EQ(stds, (std::vector<double>{0.02, 0.005}));
}

TEST_F(MlpTest, IsTheFormula) {
  Mlp mlp("mlp", small(DType::F64), Label::Mlp);
  allocate_parameters(stream(), mlp, 1);
  const Tensor x = random_tensor(stream(), {3, 6}, DType::F64, 2);
  std::vector<std::vector<double>> weights;
  mlp.visit([&](Parameter& p) { weights.push_back(read_back_as_double(stream(), p.value)); });
  const auto in = read_back_as_double(stream(), x);
  std::vector<double> want;
  for (size_t t = 0; t < 3; ++t) {
    std::vector<double> h(10);
    for (size_t f = 0; f < 10; ++f) {
      double gate = 0, up = 0;
      for (size_t i = 0; i < 6; ++i) {
        gate += in[t * 6 + i] * weights[0][f * 6 + i];
        up += in[t * 6 + i] * weights[0][(10 + f) * 6 + i];
      }
      h[f] = gate / (1 + std::exp(-gate)) * up;
    }
    for (size_t o = 0; o < 6; ++o) {
      double sum = 0;
      for (size_t f = 0; f < 10; ++f) sum += h[f] * weights[1][o * 10 + f];
      want.push_back(sum);
    }
  }
  testing::expect_close(run_micro_batch(stream(), mlp, x, x, {}).tensors.at("y"), want, 1e-12,
                        1e-14);
}

TEST_F(MlpTest, GradientsMatchDifferenceQuotients) {
  Mlp mlp("mlp", small(DType::F64), Label::SharedExperts);
  allocate_parameters(stream(), mlp, 1);
  expect_gradients(stream(), mlp, random_tensor(stream(), {9, 6}, DType::F64, 2));
}

TEST_F(MlpTest, RanksGiveWhatOneRankGives) {
  OverRanks test;
  test.make = [](const TensorParallel& tensor) {
    MlpConfig config;
    config.hidden = 6;
    config.ffn = 8;
    config.dtype = DType::F64;
    return std::make_unique<Mlp>("layers/0/mlp", config, Label::Mlp, tensor);
  };
  test.x = test.dy = {12, 6};
  expect_same_over_ranks(test);

  std::map<std::string, std::vector<double>> values;
  run_rank(test, {}, values);
  for (const bool sequence : {false, true}) {
    for (const RankResult& rank : run_over_ranks(test, 4, sequence, values)) {
      EXPECT_EQ(rank.parameters.at("layers/0/mlp/fc1/weight").shape, (Shape{4, 6}));
      EXPECT_EQ(rank.parameters.at("layers/0/mlp/fc2/weight").shape, (Shape{6, 2}));
      // Gate, up and activation of own channels; of x the own rows, which exist already.
      EXPECT_EQ(rank.outcome.saved_bytes, 12 * 3 * 2 * 8);
    }
  }
}

}  // namespace
}  // namespace ferry::testing
