#pragma once

// The last linear and the cross-entropy, in chunks of tokens, so that the logits of a whole
// micro-batch never exist. While training, the gradient of a chunk is made right after its loss,
// from the same logits (they are overwritten): nothing but dx is kept.
//
// What is differentiated is the SUM of token losses; the optimizer divides by the number of tokens
// of the global batch, so results do not depend on how a batch is cut into micro-batches.

#include "core/module.h"

namespace ferry {

/// Large enough that the products run at full speed, small beside the activations of a layer.
constexpr int64_t kMaxLogitBytes = int64_t{512} << 20;

/// Tokens per chunk for logits of this many columns: a multiple of 128, the largest with at most
/// `max_logit_bytes` of logits, or 128.
int64_t loss_chunk_tokens(int64_t vocab, DType dtype, int64_t max_logit_bytes = kMaxLogitBytes);

class LossHead final : public Module {
 public:
  /// Own weight "lm_head/weight" [vocab, hidden].
  LossHead(int64_t vocab, int64_t hidden, DType dtype, double init_std,
           int64_t max_logit_bytes = kMaxLogitBytes);
  /// Tied to the embedding's weight, which must outlive this.
  explicit LossHead(Parameter& tied, int64_t max_logit_bytes = kMaxLogitBytes);

  /// x [T, hidden]. Adds the sum of token losses to the step total "loss" [1]; returns the losses
  /// of the tokens, [T] in accumulate_dtype.
  Tensor forward(Pass& pass, const Tensor& x) override;
  /// dy is not used: this is where the gradient begins.
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void visit(const ParameterVisitor& visitor) override;

 private:
  Parameter own_;
  Parameter& weight_;
  int64_t max_logit_bytes_;
};

}  // namespace ferry
