#pragma once

// Gradient checks by central differences, in float64 on the CPU.
//
// The loss of a check is L = <y, dy> with a fixed random dy, so one backward gives all gradients.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <vector>

#include "core/host_copy.h"
#include "core/module.h"
#include "core/pass.h"
#include "core/tensor.h"
#include "tests/support/random_tensor.h"

namespace ferry::testing {

/// sum of a[i] * b[i].
inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  CHECK(a.size() == b.size(), "dot of ", a.size(), " and ", b.size(), " elements");
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
inline double dot(Stream& stream, const Tensor& a, const Tensor& b) {
  return dot(read_back_as_double(stream, a), read_back_as_double(stream, b));
}

/// A tensor that the loss depends on, and the gradient to be checked. Both F64 in host memory.
struct GradientPoint {
  std::string name;
  Tensor value;
  Tensor gradient;
};

struct GradientCheck {
  double step = 1e-5;
  double tolerance = 1e-6;  // relative
  uint64_t seed = 17;       // of dy and of directions
};

/// Every element: gradient[i] against (L(value[i]+h) - L(value[i]-h)) / 2h, where `loss` runs
/// forward and returns L. The error is relative to the larger of the element and the tensor's rms.
inline void expect_element_gradients(Stream& stream, const GradientPoint& point,
                                     const std::function<double()>& loss,
                                     const GradientCheck& check = {},
                                     std::source_location where = std::source_location::current()) {
  const std::vector<double> gradient = read_back_as_double(stream, point.gradient);
  ASSERT_EQ(static_cast<int64_t>(gradient.size()), point.value.numel());
  const double rms =
      gradient.empty() ? 0
                       : std::sqrt(dot(gradient, gradient) / static_cast<double>(gradient.size()));
  double* value = point.value.data<double>();
  size_t num_bad = 0;
  std::string first_bad;
  for (size_t i = 0; i < gradient.size(); ++i) {
    const double center = value[i];
    value[i] = center + check.step;
    const double above = loss();
    value[i] = center - check.step;
    const double below = loss();
    value[i] = center;
    const double numeric = (above - below) / (2 * check.step);
    const double size = std::max({std::abs(numeric), std::abs(gradient[i]), rms, 1e-3});
    if (std::abs(numeric - gradient[i]) <= check.tolerance * size) continue;
    if (num_bad++ == 0)
      first_bad =
          concat("first at ", i, ": gradient ", gradient[i], ", difference quotient ", numeric);
  }
  if (num_bad > 0)
    ADD_FAILURE_AT(where.file_name(), static_cast<int>(where.line()))
        << "gradient of " << point.name << ": " << num_bad << " of " << gradient.size()
        << " elements are wrong, " << first_bad;
}

/// Each point along one random direction v: <gradient, v> against (L(value+hv) - L(value-hv)) / 2h.
inline void expect_directional_gradients(
    Stream& stream, const std::vector<GradientPoint>& points, const std::function<double()>& loss,
    const GradientCheck& check = {}, std::source_location where = std::source_location::current()) {
  uint64_t seed = check.seed;
  for (const GradientPoint& point : points) {
    const std::vector<double> gradient = read_back_as_double(stream, point.gradient);
    const std::vector<double> center = read_back_as_double(stream, point.value);
    const std::vector<double> v = random_values(point.value.numel(), ++seed);
    ASSERT_EQ(gradient.size(), center.size()) << point.name;
    double* value = point.value.data<double>();
    const auto loss_at = [&](double step) {
      for (size_t i = 0; i < v.size(); ++i) value[i] = center[i] + step * v[i];
      return loss();
    };
    const double numeric = (loss_at(check.step) - loss_at(-check.step)) / (2 * check.step);
    std::copy(center.begin(), center.end(), value);
    const double analytic = dot(gradient, v);
    const double rms = std::sqrt(dot(gradient, gradient) / 3);  // expected |analytic|
    const double size = std::max({std::abs(numeric), std::abs(analytic), rms, 1e-3});
    if (!(std::abs(numeric - analytic) <= check.tolerance * size))
      ADD_FAILURE_AT(where.file_name(), static_cast<int>(where.line()))
          << "gradient of " << point.name << " along a random direction is " << analytic
          << ", difference quotient " << numeric << ", relative error "
          << std::abs(numeric - analytic) / size;
  }
}

/// Gives every parameter of a module memory: values uniform in [-scale, scale) around
/// init.constant, gradients zero.
inline void allocate_parameters(Stream& stream, Module& module, uint64_t seed, double scale = 0.5) {
  module.visit([&](Parameter& parameter) {
    std::vector<double> values = random_values(parameter.shape.numel(), ++seed, scale);
    for (double& value : values) value += parameter.init.constant;
    parameter.value = tensor_of(stream, values, parameter.shape, parameter.dtype);
    parameter.grad = zeros(stream, parameter.shape, accumulate_dtype(parameter.dtype));
  });
}

/// What a module's check runs with besides its input.
struct ModuleRun {
  Batch batch;
  RandomKey key;
  bool training = true;
  /// Added to <y, dy>: losses that the module adds to the totals (and differentiates by itself).
  std::function<double(StepTotals&)> added_loss;
};

/// Checks dx (where backward returns it) and the gradient of every parameter of a float64 module,
/// whose parameters have memory (see allocate_parameters), and that backward empties the tape.
inline void expect_gradients(Stream& stream, Module& module, const Tensor& x,
                             const ModuleRun& run = {}, const GradientCheck& check = {},
                             std::source_location where = std::source_location::current()) {
  Tensor dy;
  std::vector<GradientPoint> points;
  {
    module.visit([&](Parameter& parameter) { stream.zero(parameter.grad); });
    Tape tape;
    StepTotals totals;
    Pass pass(stream, tape, run.batch, totals, run.key, run.training);
    const Tensor y = module.forward(pass, x);
    dy = random_tensor(stream, y.shape(), y.dtype(), check.seed);
    const Tensor dx = module.backward(pass, dy);
    EXPECT_TRUE(tape.empty()) << tape.num_records() << " records are left on the tape";
    stream.synchronize();
    if (dx.defined() && x.dtype() == DType::F64) points.push_back({"the input", x, dx});
    module.visit([&](Parameter& parameter) {
      points.push_back({parameter.name, parameter.value, parameter.grad});
    });
  }
  const auto loss = [&] {
    Tape tape(Tape::Mode::Off);
    StepTotals totals;
    Pass pass(stream, tape, run.batch, totals, run.key, run.training);
    const double sum = dot(stream, module.forward(pass, x), dy);
    return run.added_loss ? sum + run.added_loss(totals) : sum;
  };
  expect_directional_gradients(stream, points, loss, check, where);
}

}  // namespace ferry::testing
