#pragma once

// The optimizer step: norm of all gradients, verdict, update. AdamW; see core/ops/adamw.h.
//
// Gradients are sums over the tokens of the global batch; they are multiplied by
//   1/tokens * min(1, clip_norm / (norm + 1e-6))
// inside the update, so no pass over them is needed for it.

#include <vector>

#include "optim/state_store.h"

namespace ferry {

struct OptimizerSettings {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  // of parameters with decay
  double clip_norm = 1.0;     // 0: no clipping
};

class Optimizer {
 public:
  Optimizer(Stream& stream, std::vector<Parameter*> parameters, StateStore& store);

  /// The 2-norm of the gradients divided by `num_tokens`, over all parameters. Waits for the
  /// stream: this is the one place where a step reads from the device before its update. NaN or
  /// infinite if a gradient is.
  double gradient_norm(Stream& stream, double num_tokens);

  /// Update number `step` (from 1), given the norm that gradient_norm returned.
  void update(Stream& stream, const OptimizerSettings& settings, int64_t step, double num_tokens,
              double gradient_norm);

 private:
  std::vector<Parameter*> parameters_;
  StateStore& store_;
  Tensor sum_squares_;  // [1] F64
};

/// What gradients are multiplied by in the update.
double gradient_scale(double num_tokens, double gradient_norm, double clip_norm);

}  // namespace ferry
