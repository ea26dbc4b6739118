#pragma once

// A parameter: what the optimizer updates and the checkpoint stores. It carries its own properties
// (name, decay, axis that reduces its gradient, initial values, and where the part that this rank
// holds lies in the whole), so nothing is decided by position.

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "core/placement.h"
#include "core/tensor.h"

namespace ferry {

/// Which ranks hold copies of a parameter and sum its gradient.
enum class ReduceAxis {
  Dense,   // dp
  Stage,   // dp and tp, all ranks of a stage: each holds all of it and has a part of its gradient
  Tied,    // dp of the first and of the last stage: the embedding that is the head's weight, too
  Expert,  // edp
};

/// Initial values: constant, or normal with mean 0.
struct Init {
  double constant = 0;
  double std = 0;  // > 0: normal

  static Init normal(double std) { return {0, std}; }
  static Init ones() { return {1, 0}; }
};

struct Parameter {
  std::string name;          // global, as in the checkpoint: "layers/7/attention/qkv/weight"
  Shape shape;               // of the part that this rank holds
  DType dtype = DType::F32;  // of the value used in compute
  Init init;
  bool decay = true;  // false for norms and biases
  ReduceAxis axis = ReduceAxis::Dense;
  /// The part of the whole; unset where the rank holds all of it.
  std::optional<Placement> part;
  /// Another rank outside of the axis holds the same and has the same gradient: it is that one that
  /// counts in the norm and is stored.
  bool is_copy = false;

  Tensor value;  // [shape] dtype; allocated after the model is built, see app/model
  Tensor grad;   // [shape] accumulate_dtype(dtype); a view into a gradient bucket

  Placement placement() const { return part ? *part : Placement(shape); }
  Shape global_shape() const { return part ? part->global_shape() : shape; }
};

/// Keeps part `rank` of `size` of each of the stacked matrices, `section_rows` rows each; together
/// they are the parameter's rows.
void cut_rows(Parameter& parameter, std::span<const int64_t> section_rows, int rank, int size);
/// Keeps the columns of part `rank` of `size`.
void cut_columns(Parameter& parameter, int rank, int size);

using ParameterVisitor = std::function<void(Parameter&)>;

}  // namespace ferry
