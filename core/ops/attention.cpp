#include "core/ops/attention.h"

#include "core/ops/attention_kernels.h"
#include "core/ops/run_op.h"

namespace ferry {
namespace {

void check_attention(const Tensor& out, const Tensor& lse, const Tensor& qkv,
                     const AttentionDims& dims, const AttentionDropout& dropout) {
  check_attention_dims(dims);
  CHECK_SHAPE(qkv, {dims.tokens(), dims.qkv_width()});
  CHECK_SHAPE(out, {dims.tokens(), dims.q_width()});
  CHECK_SHAPE(lse, {dims.batch, dims.heads, dims.seq});
  CHECK(out.dtype() == qkv.dtype() && lse.dtype() == accumulate_dtype(qkv.dtype()), "out is ",
        name_of(out.dtype()), ", lse is ", name_of(lse.dtype()), ", qkv is ", name_of(qkv.dtype()));
  CHECK(dropout.probability >= 0 && dropout.probability < 1, "dropout probability ",
        dropout.probability);
  CHECK(dropout.all_heads == 0
            ? dropout.first_head == 0
            : dropout.first_head >= 0 && dropout.first_head + dims.heads <= dropout.all_heads,
        "dropout of ", dims.heads, " heads from ", dropout.first_head, " of ", dropout.all_heads);
}

// With `all_heads` given.
AttentionDropout resolved(AttentionDropout dropout, const AttentionDims& dims) {
  if (dropout.all_heads == 0) dropout.all_heads = dims.heads;
  return dropout;
}

}  // namespace

void check_attention_dims(const AttentionDims& dims) {
  CHECK(dims.batch >= 0 && dims.seq > 0 && dims.heads > 0 && dims.kv_heads > 0 && dims.head_dim > 0,
        "batch ", dims.batch, ", seq ", dims.seq, ", heads ", dims.heads, ", kv_heads ",
        dims.kv_heads, ", head_dim ", dims.head_dim);
  CHECK(dims.heads % dims.kv_heads == 0, dims.heads, " query heads cannot share ", dims.kv_heads,
        " key heads");
}

void attention_forward(Stream& stream, const Tensor& out, const Tensor& lse, const Tensor& qkv,
                       const AttentionDims& dims, double scale, const AttentionDropout& dropout) {
  check_attention(out, lse, qkv, dims, dropout);
  run_op(stream, cpu::attention_forward, cuda::attention_forward, out, lse, qkv, dims, scale,
         resolved(dropout, dims));
}

void attention_backward(Stream& stream, const Tensor& dqkv, const Tensor& dout, const Tensor& out,
                        const Tensor& lse, const Tensor& qkv, const AttentionDims& dims,
                        double scale, const AttentionDropout& dropout, bool deterministic) {
  check_attention(out, lse, qkv, dims, dropout);
  CHECK_SHAPE(dqkv, {dims.tokens(), dims.qkv_width()});
  CHECK_SHAPE(dout, {dims.tokens(), dims.q_width()});
  CHECK(dqkv.dtype() == qkv.dtype() && dout.dtype() == qkv.dtype(), "dqkv is ",
        name_of(dqkv.dtype()), ", dout is ", name_of(dout.dtype()), ", qkv is ",
        name_of(qkv.dtype()));
  run_op(stream, cpu::attention_backward, cuda::attention_backward, dqkv, dout, out, lse, qkv, dims,
         scale, resolved(dropout, dims), deterministic);
}

}  // namespace ferry
