#pragma once

// A parameter: what the optimizer updates and the checkpoint stores. It carries its own properties
// (name, decay, axis that reduces its gradient, initial values), so nothing is decided by position.

#include <functional>
#include <string>

#include "core/tensor.h"

namespace ferry {

/// Which group of ranks holds copies of this parameter and sums its gradient.
enum class ReduceAxis { Dense /* dp */, Expert /* edp */ };

/// Initial values: constant, or normal with mean 0.
struct Init {
  double constant = 0;
  double std = 0;  // > 0: normal

  static Init normal(double std) { return {0, std}; }
  static Init ones() { return {1, 0}; }
};

struct Parameter {
  std::string name;  // global, as in the checkpoint: "layers/7/attention/qkv/weight"
  Shape shape;
  DType dtype = DType::F32;  // of the value used in compute
  Init init;
  bool decay = true;  // false for norms and biases
  ReduceAxis axis = ReduceAxis::Dense;

  Tensor value;  // [shape] dtype; allocated after the model is built, see app/model
  Tensor grad;   // [shape] accumulate_dtype(dtype); a view into a gradient bucket
};

using ParameterVisitor = std::function<void(Parameter&)>;

}  // namespace ferry
