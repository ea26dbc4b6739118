#pragma once

// The optimizer step: norm of all gradients, verdict, update.
//
// Gradients are sums over the tokens of the global batch; they are multiplied by
//   1/tokens * min(1, clip_norm / (norm + 1e-6))
// inside the update, so no pass over them is needed for it.

#include <vector>

#include "optim/state_store.h"

namespace ferry {

struct OptimizerSettings {
  double lr = 0;
  double weight_decay = 0.1;  // of parameters with decay
  double clip_norm = 1.0;     // 0: no clipping
};

class Optimizer {
 public:
  /// Counts `owned` in the norm: the shards of this rank (optim/shards.h). The rule and the store,
  /// which knows the parameters that it updates, outlive this.
  Optimizer(Stream& stream, std::vector<Parameter*> owned, const UpdateRule& rule,
            StateStore& store);

  /// The sum of squares of the gradients that this rank owns and that are no copies: over all ranks
  /// of the world, every gradient once. Waits for the stream: this is the one place where a step
  /// reads from the device before its update. NaN or infinite if a gradient is.
  double sum_squares(Stream& stream);

  /// Update number `step` (from 1), given gradient_norm() of the sum over the world.
  void update(Stream& stream, const OptimizerSettings& settings, int64_t step, double num_tokens,
              double gradient_norm);

 private:
  std::vector<Parameter*> owned_;
  const UpdateRule& rule_;
  StateStore& store_;
  Tensor sum_squares_;  // [1] F64
};

/// The 2-norm of the gradients divided by the tokens of the global batch. `sum_squares`: of the
/// whole world.
double gradient_norm(double sum_squares, double num_tokens);

/// What gradients are multiplied by in the update.
double gradient_scale(double num_tokens, double gradient_norm, double clip_norm);

}  // namespace ferry
