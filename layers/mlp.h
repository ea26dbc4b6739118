#pragma once

// A dense gated MLP: y = (silu(gate) * up) * fc2^T with [gate, up] = x * fc1^T. Tensor-parallel
// ranks have equally many of the ffn channels each.

#include <string>

#include "core/module.h"
#include "layers/tensor_parallel.h"

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
  /// `label` is Mlp, or SharedExperts inside a MoE layer. `config` is of the whole layer; the ranks
  /// must divide ffn.
  Mlp(const std::string& name, const MlpConfig& config, Label label,
      const TensorParallel& tensor = {});

  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void visit(const ParameterVisitor& visitor) override;

 private:
  Parameter fc1_;  // [2*ffn, hidden]: gate rows, then up rows
  Parameter fc2_;  // [hidden, ffn]
  Label label_;
  TensorParallel tensor_;
};

}  // namespace ferry
