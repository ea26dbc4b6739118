#pragma once

// The two backends of cross_entropy.h. Arguments are already checked.

#include "core/ops/cross_entropy.h"

namespace ferry::cpu {

void cross_entropy(const Tensor& token_loss, const Tensor& loss_sum, const Tensor& logits,
                   const Tensor& labels, const Tensor& mask, bool with_gradient);
void cross_entropy_part(const Tensor& statistics, const Tensor& logits, const Tensor& labels,
                        int64_t first_column, int64_t num_columns);
void cross_entropy_join(const Tensor& token_loss, const Tensor& loss_sum, const Tensor& logits,
                        const Tensor& statistics, const Tensor& labels, const Tensor& mask,
                        int64_t first_column, int64_t num_columns, bool with_gradient);

}  // namespace ferry::cpu

namespace ferry::cuda {

void cross_entropy(Stream& stream, const Tensor& token_loss, const Tensor& loss_sum,
                   const Tensor& logits, const Tensor& labels, const Tensor& mask,
                   bool with_gradient);
void cross_entropy_part(Stream& stream, const Tensor& statistics, const Tensor& logits,
                        const Tensor& labels, int64_t first_column, int64_t num_columns);
void cross_entropy_join(Stream& stream, const Tensor& token_loss, const Tensor& loss_sum,
                        const Tensor& logits, const Tensor& statistics, const Tensor& labels,
                        const Tensor& mask, int64_t first_column, int64_t num_columns,
                        bool with_gradient);

}  // namespace ferry::cuda
