// The checks that all tests rely on must themselves be able to fail.

#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/stream_cpu.h"
#include "tests/support/devices.h"
#include "tests/support/error_of.h"
#include "tests/support/gradients.h"

namespace ferry::testing {
namespace {

TEST(ExpectClose, AcceptsWhatIsClose) {
  expect_close({1, 2, INFINITY}, {1 + 1e-7, 2, INFINITY}, 1e-6, 0);
  expect_close({1e-9}, {0}, 0, 1e-8);
  expect_close(std::vector<double>{}, {}, 0, 0);
}

TEST(ExpectClose, SaysWhereAndHowFar) {
  EXPECT_NONFATAL_FAILURE(expect_close({1, 2.5, 5}, {1, 2, 3}, 0.01, 0), "2 of 3 elements differ");
  EXPECT_NONFATAL_FAILURE(expect_close({1, 2.5, 5}, {1, 2, 3}, 0.01, 0),
                          "first at 1: actual 2.5, expected 2");
  EXPECT_NONFATAL_FAILURE(expect_close({1, 2.5, 5}, {1, 2, 3}, 0.01, 0),
                          "worst at 2: actual 5, expected 3, error 2");
  EXPECT_NONFATAL_FAILURE(expect_close({NAN}, {0}, 1, 1), "first at 0: actual nan");
  EXPECT_NONFATAL_FAILURE(expect_close({0}, {NAN}, 1, 1), "expected nan");
  EXPECT_NONFATAL_FAILURE(expect_close({1}, {1, 2}, 1, 1), "1 elements, expected 2");
}

TEST(ErrorOf, FailsWithoutAnErrorOfTheCode) {
  const auto said = [](ExitCode code) {
    return error_of(code, [] { fail(ExitCode::Data, "token 7"); });
  };
  EXPECT_EQ(said(ExitCode::Data), "token 7");
  EXPECT_NONFATAL_FAILURE(said(ExitCode::Usage), "token 7");
  EXPECT_NONFATAL_FAILURE(error_of(ExitCode::Data, [] {}), "no error");
}

class Support : public CpuTest {};

TEST_F(Support, SameBitsSeesTheSignOfZero) {
  const Tensor plus = tensor_of(stream(), {1, 0.0}, {2}, DType::F32);
  const Tensor minus = tensor_of(stream(), {1, -0.0}, {2}, DType::F32);
  Stream& on = stream();
  expect_same_bits(on, plus, plus);
  const auto compare = [&] { expect_same_bits(on, plus, minus); };
  EXPECT_NONFATAL_FAILURE(compare(), "bits differ, first in element 1");
}

TEST_F(Support, PoisonIsNaNAndMinusOne) {
  for (const double value : read_back_as_double(stream(), poisoned(stream(), {3}, DType::BF16)))
    EXPECT_TRUE(std::isnan(value));
  EXPECT_EQ(read_back<int32_t>(stream(), poisoned(stream(), {1}, DType::I32))[0], -1);
}

TEST_F(Support, ElementGradientsFindOneWrongElement) {
  const Tensor x = random_tensor(stream(), {4}, DType::F64, 1);
  const Tensor gradient = zeros(stream(), {4}, DType::F64);
  stream().synchronize();
  const auto loss = [&] {
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += std::pow(x.data<double>()[i], 3);
    return sum;
  };
  for (int i = 0; i < 4; ++i) gradient.data<double>()[i] = 3 * std::pow(x.data<double>()[i], 2);
  expect_element_gradients(stream(), {"x", x, gradient}, loss);
  gradient.data<double>()[2] += 1e-4;
  const auto check = [&] { expect_element_gradients(stream(), {"x", x, gradient}, loss); };
  EXPECT_NONFATAL_FAILURE(check(), "gradient of x: 1 of 4 elements are wrong, first at 2");
}

// y = weight * x^2 elementwise, with gradients that can be made wrong.
class Square final : public Module {
 public:
  explicit Square(int64_t size) { weight_.name = "weight", weight_.shape = {size}; }
  double dx_factor = 2, dweight_factor = 1;

  Tensor forward(Pass& pass, const Tensor& x) override {
    const Tensor y = Tensor::empty(pass.stream, "y", x.shape(), x.dtype());
    enqueue_cpu(pass.stream, [x, y, weight = weight_.value] {
      for (int64_t i = 0; i < x.numel(); ++i)
        y.data<double>()[i] = weight.data<double>()[i] * std::pow(x.data<double>()[i], 2);
    });
    pass.tape().save(pass.stream, Label::Mlp, {x});
    return y;
  }
  Tensor backward(Pass& pass, const Tensor& dy) override {
    const auto [x] = pass.tape().load<1>(pass.stream, Label::Mlp);
    const Tensor dx = Tensor::empty(pass.stream, "dx", x.shape(), x.dtype());
    enqueue_cpu(pass.stream, [this, x = x, dy, dx] {
      for (int64_t i = 0; i < x.numel(); ++i) {
        const double x_i = x.data<double>()[i], dy_i = dy.data<double>()[i];
        dx.data<double>()[i] = dx_factor * weight_.value.data<double>()[i] * x_i * dy_i;
        weight_.grad.data<double>()[i] += dweight_factor * x_i * x_i * dy_i;
      }
    });
    return dx;
  }
  void visit(const ParameterVisitor& visitor) override {
    weight_.dtype = DType::F64;
    visitor(weight_);
  }

 private:
  Parameter weight_;
};

TEST_F(Support, ModuleGradientsFindWrongOnes) {
  Square module(6);
  allocate_parameters(stream(), module, 1);
  const Tensor x = random_tensor(stream(), {6}, DType::F64, 2);
  const auto check = [&] { expect_gradients(stream(), module, x); };
  check();
  check();  // gradients start from zero each time
  module.dx_factor = 2.0001;
  EXPECT_NONFATAL_FAILURE(check(), "gradient of the input along a random direction");
  module.dx_factor = 2;
  module.dweight_factor = 0;
  EXPECT_NONFATAL_FAILURE(check(), "gradient of weight along a random direction");
}

}  // namespace
}  // namespace ferry::testing
