#pragma once

// The two backends of attention.h. Arguments are already checked, and `all_heads` of the dropout is
// given.

#include "core/ops/attention.h"

namespace ferry {

/// CHECKs that all sizes are positive and that kv_heads divides heads.
void check_attention_dims(const AttentionDims& dims);

}  // namespace ferry

namespace ferry::cpu {

void attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv,
                       const AttentionDims& dims, double scale, const AttentionDropout& dropout);
void attention_backward(const Tensor& dqkv, const Tensor& dout, const Tensor& out,
                        const Tensor& lse, const Tensor& qkv, const AttentionDims& dims,
                        double scale, const AttentionDropout& dropout, bool deterministic);

}  // namespace ferry::cpu

namespace ferry::cuda {

void attention_forward(Stream& stream, const Tensor& out, const Tensor& lse, const Tensor& qkv,
                       const AttentionDims& dims, double scale, const AttentionDropout& dropout);
void attention_backward(Stream& stream, const Tensor& dqkv, const Tensor& dout, const Tensor& out,
                        const Tensor& lse, const Tensor& qkv, const AttentionDims& dims,
                        double scale, const AttentionDropout& dropout, bool deterministic);

}  // namespace ferry::cuda
