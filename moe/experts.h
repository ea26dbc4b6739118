#pragma once

// The experts of a MoE layer as grouped products: fc1, SwiGLU times the router's probability, fc2.
// R rows, ordered by expert; E experts on this rank; F = ffn, or this rank's part of it. An expert
// without rows is a normal case: its gradients get nothing added. So is a rank without rows. Rows
// from offsets[E] on are padding: they may hold anything, and what comes of them is undefined.

#include <string>
#include <utility>

#include "core/module.h"
#include "core/ops/grouped_gemm.h"
#include "layers/mlp.h"
#include "moe/expert_parallel.h"

namespace ferry {

class Experts {
 public:
  /// `name`: "layers/7/moe/experts". num_experts and config.ffn are those of the layer; ep must
  /// divide the first, etp the second. `fused`: all that is saved is one module's, fused_group_mlp,
  /// instead of that of expert_fc1, moe_act and expert_fc2.
  Experts(const std::string& name, int64_t num_experts, const MlpConfig& config,
          const ExpertParallel& parallel = {}, bool fused = false);

  /// y [R, hidden] (with etp: this rank's part of a sum) from rows [R, hidden], their probabilities
  /// [R] and the offsets [E+1] of experts. Gathered rows are saved as the tokens and their order,
  /// of which all are in use.
  Tensor forward(Pass& pass, const Rows& rows, const Tensor& probs, const Tensor& offsets);
  struct Gradients {
    Tensor rows;   // [R, hidden]
    Tensor probs;  // [R]
  };
  /// What the gradient of fc1's weight is made of.
  struct Fc1Operands {
    Tensor doutput;  // [R, 2 * F]
    Rows input;
    Tensor offsets;
  };
  /// Leaves the gradient of fc1's weight to backward_fc1_weight, so that those of the rows can be
  /// on their way to other ranks meanwhile.
  std::pair<Gradients, Fc1Operands> backward(Pass& pass, Tensor dy);
  void backward_fc1_weight(Stream& stream, const Fc1Operands& operands);
  void visit(const ParameterVisitor& visitor);

 private:
  /// The module that the records of `part` are saved as.
  Label saved_as(Label part) const { return fused_ ? Label::FusedGroupMlp : part; }

  bool fused_;
  Parameter fc1_;  // [E, 2*F, hidden]: gate rows, then up rows of each expert
  Parameter fc2_;  // [E, hidden, F]
};

}  // namespace ferry
