#pragma once

// A module that works on a part of the tokens of each tensor-parallel rank (a MoE layer), among
// modules that have all of them on every rank, as without sequence parallelism.

#include <memory>

#include "core/module.h"
#include "layers/tensor_parallel.h"

namespace ferry {

class SequenceSlice final : public Module {
 public:
  /// `inner` gets the rows of x that sequence parallelism would give this rank, and must treat its
  /// replicated parameters as used inside of a region: their gradients are parts. For more than one
  /// rank without sequence parallelism.
  SequenceSlice(std::unique_ptr<Module> inner, const TensorParallel& tensor);

  /// x and y [T, ...]; the ranks must divide T.
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void visit(const ParameterVisitor& visitor) override { inner_->visit(visitor); }

 private:
  std::unique_ptr<Module> inner_;
  TensorParallel tensor_;
};

}  // namespace ferry
