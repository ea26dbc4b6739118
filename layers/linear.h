#pragma once

// A linear map without bias: y [T, out] = x [T, in] * weight [out, in]^T. In a tensor-parallel
// region (see tensor_parallel.h) each rank holds a part of the weight: output channels in the first
// product, inputs in the last one.

#include <initializer_list>
#include <string>

#include "core/module.h"
#include "layers/tensor_parallel.h"

namespace ferry {

class Linear final : public Module {
 public:
  /// `name` is the parameter's global name without "/weight"; `label` is whose activation x is.
  Linear(const std::string& name, int64_t in, int64_t out, DType dtype, Init init, Label label);

  /// Keeps this rank's part of the output channels: of each of the matrices stacked in the weight,
  /// `section_rows` rows each. x enters the region (with sequence parallelism it is the rank's rows
  /// that are saved, and gathered again in backward); y [T, out/size].
  void cut_outputs(const TensorParallel& tensor, std::initializer_list<int64_t> section_rows);
  /// Keeps this rank's part of the inputs: x [T, in/size]; y leaves the region.
  void cut_inputs(const TensorParallel& tensor);

  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void visit(const ParameterVisitor& visitor) override { visitor(weight_); }

 private:
  Parameter weight_;
  Label label_;
  TensorParallel enters_;  // of one rank, which does nothing, where x does not enter a region
  TensorParallel leaves_;
};

}  // namespace ferry
