#pragma once

// The experts of a MoE layer as grouped products: fc1, SwiGLU times the router's probability, fc2.
// R rows, ordered by expert; E experts on this rank; F = ffn. An expert without rows is a normal
// case: its gradients get nothing added.

#include <string>

#include "core/module.h"
#include "layers/mlp.h"

namespace ferry {

class Experts {
 public:
  /// `name`: "layers/7/moe/experts".
  Experts(const std::string& name, int64_t num_experts, const MlpConfig& config);

  /// y [R, hidden] from rows [R, hidden], their probabilities [R] and the offsets [E+1] of experts.
  Tensor forward(Pass& pass, const Tensor& rows, const Tensor& probs, const Tensor& offsets);
  struct Gradients {
    Tensor rows;   // [R, hidden]
    Tensor probs;  // [R]
  };
  Gradients backward(Pass& pass, const Tensor& dy, const Tensor& offsets);
  void visit(const ParameterVisitor& visitor);

 private:
  Parameter fc1_;  // [E, 2*ffn, hidden]
  Parameter fc2_;  // [E, hidden, ffn]
};

}  // namespace ferry
