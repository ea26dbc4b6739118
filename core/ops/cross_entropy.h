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

// The same with the vocabulary cut over ranks: each has logits [N, V'] of the columns
// [first_column, first_column + V') of the vocabulary, of which the first `num_columns` count; the
// rest is padding. One exchange of three numbers per token joins them:
//   cross_entropy_part;  all-gather of the statistics;  cross_entropy_join

/// statistics [N, 3] (dtype of token_loss): the largest counted logit m, the sum of exp(logit - m),
/// and the label's logit, or 0 where another rank has it. Without counted columns: -infinity, 0, 0.
void cross_entropy_part(Stream& stream, const Tensor& statistics, const Tensor& logits,
                        const Tensor& labels, int64_t first_column, int64_t num_columns);

/// token_loss, loss_sum and, if with_gradient, the gradient over the logits, as cross_entropy has
/// them; statistics [parts, N, 3] are joined in the order of parts. Columns of padding get 0.
void cross_entropy_join(Stream& stream, const Tensor& token_loss, const Tensor& loss_sum,
                        const Tensor& logits, const Tensor& statistics, const Tensor& labels,
                        const Tensor& mask, int64_t first_column, int64_t num_columns,
                        bool with_gradient);

}  // namespace ferry
