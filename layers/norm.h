#pragma once

// RMS norm with a weight per column; see core/ops/rmsnorm.h. Its output can be rebuilt from its
// input, so a policy that discards `layernorm` keeps no memory for it.

#include <string>
#include <utility>

#include "core/module.h"
#include "layers/tensor_parallel.h"

namespace ferry {

class RmsNorm final : public Module {
 public:
  /// x are the rows between the regions of `tensor`.
  RmsNorm(const std::string& name, int64_t width, DType dtype, double eps, Label label,
          const TensorParallel& tensor = {});

  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override { return backward_add(pass, dy, {}); }
  void visit(const ParameterVisitor& visitor) override { visitor(weight_); }

  /// {x + branch, norm(x + branch)}: the end of one residual branch and the start of the next.
  std::pair<Tensor, Tensor> forward_add(Pass& pass, const Tensor& x, const Tensor& branch);
  /// The gradient of the norm's input plus `dresidual` (may be undefined), the gradient that
  /// reaches it along the residual path.
  Tensor backward_add(Pass& pass, const Tensor& dy, const Tensor& dresidual);

 private:
  void save(Pass& pass, const Tensor& x, const Tensor& rstd, const Tensor& y);

  Parameter weight_;
  double eps_;
  Label label_;
};

}  // namespace ferry
