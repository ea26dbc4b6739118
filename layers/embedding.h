#pragma once

// Token embedding: reads pass.batch.tokens; the argument of forward is not used, and backward
// returns no gradient.

#include "core/module.h"

namespace ferry {

class Embedding final : public Module {
 public:
  Embedding(int64_t vocab, int64_t hidden, DType dtype, double init_std);

  /// y [T, hidden].
  Tensor forward(Pass& pass, const Tensor& unused) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void visit(const ParameterVisitor& visitor) override { visitor(weight_); }

  /// For a head with tied weights.
  Parameter& weight() { return weight_; }

 private:
  Parameter weight_;  // "embedding/weight" [vocab, hidden]
};

}  // namespace ferry
