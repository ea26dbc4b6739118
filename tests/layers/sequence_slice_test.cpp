#include "layers/sequence_slice.h"

#include <gtest/gtest.h>

#include "layers/linear.h"
#include "tests/layers/over_ranks.h"
#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

// A linear that every rank holds whole, on its own tokens.
class TokenLinear final : public Module {
 public:
  explicit TokenLinear(const TensorParallel& tensor) : tensor_(tensor) {
    linear_.visit([&](Parameter& weight) { tensor.replicate_inside(weight); });
  }
  Tensor forward(Pass& pass, const Tensor& x) override {
    EXPECT_EQ(x.dim(0), 12 / tensor_.size);
    return linear_.forward(pass, x);
  }
  Tensor backward(Pass& pass, const Tensor& dy) override {
    EXPECT_EQ(dy.dim(0), 12 / tensor_.size);
    return linear_.backward(pass, dy);
  }
  void visit(const ParameterVisitor& visitor) override { linear_.visit(visitor); }

 private:
  TensorParallel tensor_;
  Linear linear_{"linear", 6, 5, DType::F64, Init::normal(1), Label::Moe};
};

TEST(SequenceSliceTest, RanksGiveWhatOneRankGives) {
  OverRanks test;
  test.make = [](const TensorParallel& tensor) -> std::unique_ptr<Module> {
    auto inner = std::make_unique<TokenLinear>(tensor);
    if (tensor.size == 1 || tensor.sequence) return inner;
    return std::make_unique<SequenceSlice>(std::move(inner), tensor);
  };
  test.x = {12, 6};
  test.dy = {12, 5};
  expect_same_over_ranks(test);
}

TEST(SequenceSliceTest, IsForRanksThatHaveAllRows) {
  const auto make = [](const TensorParallel& tensor) {
    return SequenceSlice(std::make_unique<TokenLinear>(tensor), tensor);
  };
  EXPECT_NO_THROW(make({nullptr, 0, 2, false}));
  EXPECT_THROW(make({nullptr, 0, 2, true}), Error);
  EXPECT_THROW(make({}), Error);
}

TEST(SequenceSliceTest, RefusesTokensThatRanksDoNotDivide) {
  OverRanks test;
  test.make = [](const TensorParallel& tensor) {
    return std::make_unique<SequenceSlice>(std::make_unique<TokenLinear>(tensor), tensor);
  };
  test.x = {13, 6};
  std::map<std::string, std::vector<double>> values{{"linear/weight", random_values(30, 1)}};
  try {
    run_over_ranks(test, 2, false, values);
    FAIL() << "13 tokens on 2 ranks";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("2 tensor-parallel ranks do not divide 13 tokens"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace ferry::testing
