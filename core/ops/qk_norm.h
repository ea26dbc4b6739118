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

}  // namespace ferry
