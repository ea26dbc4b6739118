#pragma once

// The two ways to compute attention on a GPU. cudnn_attention_cuda.cpp, or no_cudnn.cu where Ferry
// is built without cuDNN; attention_fallback_cuda.cu. Arguments are already checked.

#include "core/ops/attention.h"

namespace ferry::cuda {

/// True if cuDNN has both directions for these sizes on this device. Plans are made here, once.
bool cudnn_attention_supported(Stream& stream, DType dtype, const AttentionDims& dims,
                               double scale);
void cudnn_attention_forward(Stream& stream, const Tensor& out, const Tensor& lse,
                             const Tensor& qkv, const AttentionDims& dims, double scale);
/// deterministic: equal inputs give equal bits; costs time and workspace.
void cudnn_attention_backward(Stream& stream, const Tensor& dqkv, const Tensor& dout,
                              const Tensor& out, const Tensor& lse, const Tensor& qkv,
                              const AttentionDims& dims, double scale, bool deterministic);

/// F32 and BF16, head dims up to 256, dropout; sums in FP32 in a fixed order, without atomics.
void fallback_attention_forward(Stream& stream, const Tensor& out, const Tensor& lse,
                                const Tensor& qkv, const AttentionDims& dims, double scale,
                                const AttentionDropout& dropout);
void fallback_attention_backward(Stream& stream, const Tensor& dqkv, const Tensor& dout,
                                 const Tensor& out, const Tensor& lse, const Tensor& qkv,
                                 const AttentionDims& dims, double scale,
                                 const AttentionDropout& dropout);

}  // namespace ferry::cuda
