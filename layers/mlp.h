#pragma once

// A dense gated MLP: y = (silu(gate) * up) * fc2^T with [gate, up] = x * fc1^T.

#include <string>

#include "core/module.h"

namespace ferry {

struct MlpConfig {
  int64_t hidden = 0;
  int64_t ffn = 0;
  double init_std = 0.02;
  double output_init_std = 0.02;
  DType dtype = DType::F32;
};

class Mlp final : public Module {
 public:
  /// `label` is Mlp, or SharedExperts inside a MoE layer.
  Mlp(const std::string& name, const MlpConfig& config, Label label);

  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void visit(const ParameterVisitor& visitor) override;

 private:
  Parameter fc1_;  // [2*ffn, hidden]: gate rows, then up rows
  Parameter fc2_;  // [hidden, ffn]
  Label label_;
};

}  // namespace ferry
