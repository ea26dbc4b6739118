#include "layers/linear.h"

#include <gtest/gtest.h>

#include "tests/layers/over_ranks.h"
#include "tests/support/devices.h"
#include "tests/support/micro_batch.h"

namespace ferry::testing {
namespace {

class LinearTest : public CpuTest {
 protected:
  Linear linear{"layers/3/attention/proj", 7, 5, DType::F64, Init::normal(0.1), Label::AttnProj};
};

TEST_F(LinearTest, DescribesItsParameter) {
  linear.visit([](Parameter& weight) {
    EXPECT_EQ(weight.name, "layers/3/attention/proj/weight");
    EXPECT_EQ(weight.shape, (Shape{5, 7}));
    EXPECT_EQ(weight.init.std, 0.1);
    EXPECT_TRUE(weight.decay);
    EXPECT_EQ(weight.axis, ReduceAxis::Dense);
  });
}

TEST_F(LinearTest, GradientsMatchDifferenceQuotients) {
  allocate_parameters(stream(), linear, 1);
  expect_gradients(stream(), linear, random_tensor(stream(), {9, 7}, DType::F64, 2));
}

// Several micro-batches add to one gradient.
TEST_F(LinearTest, BackwardAddsToTheGradient) {
  allocate_parameters(stream(), linear, 1);
  const Tensor x = random_tensor(stream(), {9, 7}, DType::F64, 2);
  const Tensor dy = random_tensor(stream(), {9, 5}, DType::F64, 3);
  const Outcome once = run_micro_batch(stream(), linear, x, dy, {});
  Tape tape;
  StepTotals totals;
  const Batch batch;
  Pass pass(stream(), tape, batch, totals, {}, true);
  linear.forward(pass, x);
  linear.backward(pass, dy);
  std::vector<double> doubled = once.tensors.at("d(layers/3/attention/proj/weight)");
  for (double& value : doubled) value *= 2;
  linear.visit([&](Parameter& weight) {
    testing::expect_close(read_back_as_double(stream(), weight.grad), doubled, 1e-14, 1e-15);
  });
}

TEST_F(LinearTest, TwoMicroBatchesCanBeInFlight) {
  allocate_parameters(stream(), linear, 1);
  const Tensor x[] = {random_tensor(stream(), {9, 7}, DType::F64, 2),
                      random_tensor(stream(), {4, 7}, DType::F64, 3)};
  const Tensor dy[] = {random_tensor(stream(), {9, 5}, DType::F64, 4),
                       random_tensor(stream(), {4, 5}, DType::F64, 5)};
  StepTotals totals;
  const Batch batch;
  Tape tape0, tape1;
  Pass pass0(stream(), tape0, batch, totals, {}, true);
  Pass pass1(stream(), tape1, batch, totals, {}, true);
  linear.forward(pass0, x[0]);
  linear.forward(pass1, x[1]);
  const Tensor dx0 = linear.backward(pass0, dy[0]), dx1 = linear.backward(pass1, dy[1]);
  const auto gradient = [&] {
    std::vector<double> values;
    linear.visit([&](Parameter& p) { values = read_back_as_double(stream(), p.grad); });
    return values;
  };
  const std::vector<double> both = gradient();
  const Outcome first = run_micro_batch(stream(), linear, x[0], dy[0], {});
  const Outcome second = run_micro_batch(stream(), linear, x[1], dy[1], {});
  EXPECT_EQ(read_back_as_double(stream(), dx0), first.tensors.at("dx"));
  EXPECT_EQ(read_back_as_double(stream(), dx1), second.tensors.at("dx"));
  std::vector<double> sum = first.tensors.at("d(layers/3/attention/proj/weight)");
  const std::vector<double>& more = second.tensors.at("d(layers/3/attention/proj/weight)");
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  testing::expect_close(both, sum, 1e-14, 1e-15);
}

// Two products that make a region.
class Region final : public Module {
 public:
  explicit Region(const TensorParallel& tensor) {
    first_.cut_outputs(tensor, {16});
    last_.cut_inputs(tensor);
  }
  Tensor forward(Pass& pass, const Tensor& x) override {
    return last_.forward(pass, first_.forward(pass, x));
  }
  Tensor backward(Pass& pass, const Tensor& dy) override {
    return first_.backward(pass, last_.backward(pass, dy));
  }
  void visit(const ParameterVisitor& visitor) override {
    first_.visit(visitor);
    last_.visit(visitor);
  }

 private:
  Linear first_{"first", 6, 16, DType::F64, Init::normal(1), Label::QkvLinear};
  Linear last_{"last", 16, 5, DType::F64, Init::normal(1), Label::AttnProj};
};

OverRanks region_test() {
  OverRanks test;
  test.make = [](const TensorParallel& tensor) { return std::make_unique<Region>(tensor); };
  test.x = {12, 6};
  test.dy = {12, 5};
  return test;
}

TEST_F(LinearTest, RanksGiveWhatOneRankGives) { expect_same_over_ranks(region_test()); }

TEST_F(LinearTest, OnlyOwnRowsOfTheInputAreSaved) {
  const OverRanks test = region_test();
  std::map<std::string, std::vector<double>> values;
  run_rank(test, {}, values);
  for (const bool sequence : {false, true})
    for (const RankResult& rank : run_over_ranks(test, 4, sequence, values))
      EXPECT_EQ(rank.outcome.saved_bytes, 12 * 16 / 4 * 8);  // between the two products
}

TEST_F(LinearTest, DescribesItsPart) {
  const TensorParallel second{nullptr, 1, 2, true};
  Linear outputs("w", 4, 6, DType::F32, {}, Label::QkvLinear);
  outputs.cut_outputs(second, {4, 2});
  outputs.visit([](Parameter& weight) {
    EXPECT_EQ(weight.shape, (Shape{3, 4}));
    EXPECT_EQ(weight.global_shape(), (Shape{6, 4}));
    EXPECT_EQ(weight.placement().runs(), (std::vector<PlacedRows>{{0, 2, 2}, {2, 5, 1}}));
    EXPECT_EQ(weight.axis, ReduceAxis::Dense);
  });
  Linear inputs("w", 4, 6, DType::F32, {}, Label::AttnProj);
  inputs.cut_inputs(second);
  inputs.visit([](Parameter& weight) {
    EXPECT_EQ(weight.shape, (Shape{6, 2}));
    EXPECT_EQ(weight.placement().first_column(), 2);
    EXPECT_EQ(weight.axis, ReduceAxis::Dense);
  });
}

}  // namespace
}  // namespace ferry::testing
