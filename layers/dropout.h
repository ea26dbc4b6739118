#pragma once

// Dropout of a residual branch. The mask is a function of (seed, step, site, global element), so
// backward makes it again and nothing is saved, and ranks with different rows need not agree.

#include <string>

#include "core/module.h"
#include "layers/tensor_parallel.h"

namespace ferry {

class Dropout final : public Module {
 public:
  /// `name` chooses the random site; probability 0 makes the module the identity. x are the rows
  /// between the regions of `tensor`.
  Dropout(const std::string& name, double probability, const TensorParallel& tensor = {});

  Tensor forward(Pass& pass, const Tensor& x) override { return apply(pass, x); }
  Tensor backward(Pass& pass, const Tensor& dy) override { return apply(pass, dy); }
  void visit(const ParameterVisitor&) override {}

 private:
  Tensor apply(Pass& pass, const Tensor& x) const;

  double probability_;
  uint32_t site_;
  TensorParallel tensor_;
};

}  // namespace ferry
