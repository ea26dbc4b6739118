#pragma once

// The last linear and the cross-entropy, in chunks of tokens, so that the logits of a whole
// micro-batch never exist. While training, the gradient of a chunk is made right after its loss,
// from the same logits (they are overwritten): nothing but dx is kept.
//
// What is differentiated is the SUM of token losses; the optimizer divides by the number of tokens
// of the global batch, so results do not depend on how a batch is cut into micro-batches.
//
// Tensor-parallel ranks have the logits of a part of the vocabulary each, of all T tokens, and
// exchange three numbers per token; every rank returns all token losses.

#include <functional>

#include "core/module.h"
#include "layers/tensor_parallel.h"

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
           const TensorParallel& tensor = {}, int64_t max_logit_bytes = kMaxLogitBytes);
  /// Tied to the embedding's weight, which must outlive this.
  explicit LossHead(Parameter& tied, const TensorParallel& tensor = {},
                    int64_t max_logit_bytes = kMaxLogitBytes);

  /// For an embedding on another pipeline stage: makes the own weight a copy of "embedding/weight",
  /// with its name (hence its initial values), its gradient summed over both stages.
  void tie_across_stages();

  /// Called in forward with each chunk of logits [rows, this rank's columns], in the order of
  /// tokens, before they are overwritten.
  using LogitObserver = std::function<void(Stream& stream, const Tensor& logits)>;
  void observe_logits(LogitObserver observer) { observer_ = std::move(observer); }

  /// x [T, hidden], or what lies between the regions of `tensor`. Adds the sum of token losses to
  /// the step total "loss" [1] (of tensor-parallel ranks only the first one adds, so that a sum
  /// over all ranks is right); returns the losses of the T tokens, [T] in accumulate_dtype.
  Tensor forward(Pass& pass, const Tensor& x) override;
  /// dy is not used: this is where the gradient begins.
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void visit(const ParameterVisitor& visitor) override;

 private:
  /// Where this rank adds its losses: the step total, or something that nobody reads.
  Tensor own_loss_sum(Pass& pass, DType dtype) const;
  /// Losses of the tokens from `begin` on, and the gradient over their logits in place of these.
  void chunk_loss(Pass& pass, const Tensor& token_loss, const Tensor& loss_sum,
                  const Tensor& logits, int64_t begin, bool with_gradient) const;

  Parameter own_;
  Parameter& weight_;
  TensorParallel tensor_;
  int64_t max_logit_bytes_;
  LogitObserver observer_;
};

}  // namespace ferry
