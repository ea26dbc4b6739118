#pragma once

// A linear map without bias: y [T, out] = x [T, in] * weight [out, in]^T.

#include <string>

#include "core/module.h"

namespace ferry {

class Linear final : public Module {
 public:
  /// `name` is the parameter's global name without "/weight"; `label` is whose activation x is.
  Linear(const std::string& name, int64_t in, int64_t out, DType dtype, Init init, Label label);

  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void visit(const ParameterVisitor& visitor) override { visitor(weight_); }

 private:
  Parameter weight_;
  Label label_;
};

}  // namespace ferry
