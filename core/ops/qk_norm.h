#pragma once

// RMS norm of queries and keys (see rmsnorm.h), before RoPE. Two kinds: per head, with weights
// [head_dim] shared by all heads (Qwen3), or over the full width, with weights [H*head_dim] and
// [KV*head_dim] (OLMoE). Values are copied.

#include "core/ops/attention.h"

namespace ferry {

enum class QkNormKind { Head, Full };

/// y, x: [T, qkv_width]. rstd: [T, H + KV] for Head, [T, 2] for Full (accumulate_dtype).
void qk_norm_forward(Stream& stream, const Tensor& y, const Tensor& rstd, const Tensor& x,
                     const Tensor& q_weight, const Tensor& k_weight, const AttentionDims& dims,
                     QkNormKind kind, double eps);

/// dx [T, qkv_width]; may be the same memory as dy. dq_weight, dk_weight += in accumulate_dtype.
void qk_norm_backward(Stream& stream, const Tensor& dx, const Tensor& dq_weight,
                      const Tensor& dk_weight, const Tensor& dy, const Tensor& x,
                      const Tensor& rstd, const Tensor& q_weight, const Tensor& k_weight,
                      const AttentionDims& dims, QkNormKind kind);

// The full kind with the heads cut over ranks: each has its own heads of x (dims says which many)
// and of the weights. The sums over a row are made in two steps, with a sum over ranks between
// them.

/// sums [T, 2] (accumulate_dtype): of squares of the queries and of the keys of each row of x.
void qk_norm_squares(Stream& stream, const Tensor& sums, const Tensor& x,
                     const AttentionDims& dims);
/// y and rstd [T, 2], with the sums of all ranks; `parts` ranks have equally many heads.
void qk_norm_apply(Stream& stream, const Tensor& y, const Tensor& rstd, const Tensor& x,
                   const Tensor& sums, const Tensor& q_weight, const Tensor& k_weight,
                   const AttentionDims& dims, int64_t parts, double eps);
/// sums [T, 2]: of dy * weight * x over the queries and over the keys of each row.
void qk_norm_products(Stream& stream, const Tensor& sums, const Tensor& dy, const Tensor& x,
                      const Tensor& q_weight, const Tensor& k_weight, const AttentionDims& dims);
/// dx [T, qkv_width], which may be the same memory as dy, with the sums of all ranks; dq_weight and
/// dk_weight += in accumulate_dtype.
void qk_norm_apply_backward(Stream& stream, const Tensor& dx, const Tensor& dq_weight,
                            const Tensor& dk_weight, const Tensor& dy, const Tensor& x,
                            const Tensor& rstd, const Tensor& sums, const Tensor& q_weight,
                            const Tensor& k_weight, const AttentionDims& dims, int64_t parts);

}  // namespace ferry
