#pragma once

// Softmax cross-entropy of a chunk of tokens. The caller (layers/loss_head) cuts the tokens into
// chunks, so that FP32 logits of a whole micro-batch never exist.

#include "core/tensor.h"

namespace ferry {

/// logits: [N, V] in the activation dtype or F32. labels: [N] I32. mask: [N] F32 weights.
/// token_loss [N] (F32, F64 for F64) = mask * (logsumexp(logits) - logits[label]).
/// loss_sum [1] (same dtype as token_loss) += sum of token_loss, in a fixed order.
/// If with_gradient, logits are overwritten by mask * (softmax(logits) - onehot(label)): the
/// gradient of the sum of token losses.
void cross_entropy(Stream& stream, const Tensor& token_loss, const Tensor& loss_sum,
                   const Tensor& logits, const Tensor& labels, const Tensor& mask,
                   bool with_gradient);

}  // namespace ferry
