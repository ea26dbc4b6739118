#pragma once

// Token embedding: reads pass.batch.tokens; the argument of forward is not used, and backward
// returns no gradient. Tensor-parallel ranks have a part of the vocabulary each (see
// vocabulary_part): y is the sum of their rows, all but one of which are zero.

#include "core/module.h"
#include "layers/tensor_parallel.h"

namespace ferry {

class Embedding final : public Module {
 public:
  Embedding(int64_t vocab, int64_t hidden, DType dtype, double init_std,
            const TensorParallel& tensor = {});

  /// The head on another pipeline stage has a copy of the weight; see LossHead.
  void tie_across_stages() { weight_.axis = ReduceAxis::Tied; }

  /// y [T, hidden]: what lies between the regions of `tensor`.
  Tensor forward(Pass& pass, const Tensor& unused) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void visit(const ParameterVisitor& visitor) override { visitor(weight_); }

  /// For a head with tied weights on the same stage.
  Parameter& weight() { return weight_; }

 private:
  Parameter weight_;  // "embedding/weight" [vocab, hidden], or a part of its rows
  TensorParallel tensor_;
};

}  // namespace ferry
