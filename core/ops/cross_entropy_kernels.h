#pragma once

// The two backends of cross_entropy.h. Arguments are already checked.

#include "core/ops/cross_entropy.h"

namespace ferry::cpu {

void cross_entropy(const Tensor& token_loss, const Tensor& loss_sum, const Tensor& logits,
                   const Tensor& labels, const Tensor& mask, bool with_gradient);

}  // namespace ferry::cpu

namespace ferry::cuda {

void cross_entropy(Stream& stream, const Tensor& token_loss, const Tensor& loss_sum,
                   const Tensor& logits, const Tensor& labels, const Tensor& mask,
                   bool with_gradient);

}  // namespace ferry::cuda
