#include "core/ops/attention_backends_cuda.h"
#include "core/ops/attention_kernels.h"

namespace ferry::cuda {
namespace {

bool use_cudnn(Stream& stream, const Tensor& qkv, const AttentionDims& dims, double scale,
               const AttentionDropout& dropout) {
  return qkv.dtype() == DType::BF16 && dims.head_dim % 8 == 0 && dropout.probability == 0 &&
         cudnn_attention_supported(stream, qkv.dtype(), dims, scale);
}

}  // namespace

void attention_forward(Stream& stream, const Tensor& out, const Tensor& lse, const Tensor& qkv,
                       const AttentionDims& dims, double scale, const AttentionDropout& dropout) {
  if (out.numel() == 0) return;
  if (use_cudnn(stream, qkv, dims, scale, dropout))
    cudnn_attention_forward(stream, out, lse, qkv, dims, scale);
  else
    fallback_attention_forward(stream, out, lse, qkv, dims, scale, dropout);
}

void attention_backward(Stream& stream, const Tensor& dqkv, const Tensor& dout, const Tensor& out,
                        const Tensor& lse, const Tensor& qkv, const AttentionDims& dims,
                        double scale, const AttentionDropout& dropout, bool deterministic) {
  if (out.numel() == 0) return;
  if (use_cudnn(stream, qkv, dims, scale, dropout))
    cudnn_attention_backward(stream, dqkv, dout, out, lse, qkv, dims, scale, deterministic);
  else
    fallback_attention_backward(stream, dqkv, dout, out, lse, qkv, dims, scale, dropout);
}

}  // namespace ferry::cuda
