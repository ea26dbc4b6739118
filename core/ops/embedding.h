#pragma once

// Token embedding. weight: [V, D]; tokens: [T] I32, each in [0, V) (the loader checks).

#include "core/tensor.h"

namespace ferry {

/// y [T, D] = rows of weight.
void embedding_forward(Stream& stream, const Tensor& y, const Tensor& weight, const Tensor& tokens);

/// dweight [V, D] += dy rows, in accumulate_dtype; rows of equal tokens are added in the order of
/// their positions, without atomics, so the result is deterministic.
void embedding_backward(Stream& stream, const Tensor& dweight, const Tensor& dy,
                        const Tensor& tokens);

}  // namespace ferry
