#pragma once

// Token embedding. weight: [V, D]; tokens: [T] I32 (the loader checks that they are of the
// vocabulary). The weight may be a part of the vocabulary, from row first_row of it on: tokens of
// other parts then get rows of zeros and give no gradient, so that the sum over the parts is right.
// Without parts (first_row and vocab not given), a token outside of [0, V) is an error on the CPU.

#include "core/tensor.h"

namespace ferry {

/// Which rows of a vocabulary a weight [V, D] holds: [first_row, first_row + V) of `vocab`; vocab
/// 0: all of them. Rows from `vocab` on are padding, which no token names.
struct VocabularyRows {
  int64_t first_row = 0;
  int64_t vocab = 0;
};

/// y [T, D] = rows of weight.
void embedding_forward(Stream& stream, const Tensor& y, const Tensor& weight, const Tensor& tokens,
                       VocabularyRows rows = {});

/// dweight [V, D] += dy rows, in accumulate_dtype; rows of equal tokens are added in the order of
/// their positions, without atomics, so the result is deterministic.
void embedding_backward(Stream& stream, const Tensor& dweight, const Tensor& dy,
                        const Tensor& tokens, VocabularyRows rows = {});

}  // namespace ferry
