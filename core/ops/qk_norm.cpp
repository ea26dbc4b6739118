#include "core/ops/qk_norm.h"

#include "core/ops/attention_kernels.h"
#include "core/ops/qk_norm_kernels.h"
#include "core/ops/run_op.h"

namespace ferry {
namespace {

void check_qk_norm(const Tensor& y, const Tensor& x, const Tensor& rstd, const Tensor& q_weight,
                   const Tensor& k_weight, const AttentionDims& dims, QkNormKind kind) {
  check_attention_dims(dims);
  const bool per_head = kind == QkNormKind::Head;
  CHECK_SHAPE(x, {dims.tokens(), dims.qkv_width()});
  CHECK_SHAPE(y, {dims.tokens(), dims.qkv_width()});
  CHECK_SHAPE(rstd, {dims.tokens(), per_head ? dims.heads + dims.kv_heads : 2});
  CHECK_SHAPE(q_weight, {per_head ? dims.head_dim : dims.q_width()});
  CHECK_SHAPE(k_weight, {per_head ? dims.head_dim : dims.kv_width()});
  CHECK(y.dtype() == x.dtype() && q_weight.dtype() == x.dtype() && k_weight.dtype() == x.dtype() &&
            rstd.dtype() == accumulate_dtype(x.dtype()),
        "x is ", name_of(x.dtype()), ", y is ", name_of(y.dtype()), ", weights are ",
        name_of(q_weight.dtype()), " and ", name_of(k_weight.dtype()), ", rstd is ",
        name_of(rstd.dtype()));
}

}  // namespace

void qk_norm_forward(Stream& stream, const Tensor& y, const Tensor& rstd, const Tensor& x,
                     const Tensor& q_weight, const Tensor& k_weight, const AttentionDims& dims,
                     QkNormKind kind, double eps) {
  check_qk_norm(y, x, rstd, q_weight, k_weight, dims, kind);
  run_op(stream, cpu::qk_norm_forward, cuda::qk_norm_forward, y, rstd, x, q_weight, k_weight, dims,
         kind, eps);
}

void qk_norm_backward(Stream& stream, const Tensor& dx, const Tensor& dq_weight,
                      const Tensor& dk_weight, const Tensor& dy, const Tensor& x,
                      const Tensor& rstd, const Tensor& q_weight, const Tensor& k_weight,
                      const AttentionDims& dims, QkNormKind kind) {
  check_qk_norm(dy, x, rstd, q_weight, k_weight, dims, kind);
  CHECK_SHAPE(dx, {dims.tokens(), dims.qkv_width()});
  CHECK_SHAPE(dq_weight, {q_weight.dim(0)});
  CHECK_SHAPE(dk_weight, {k_weight.dim(0)});
  CHECK(dx.dtype() == x.dtype() && dq_weight.dtype() == rstd.dtype() &&
            dk_weight.dtype() == rstd.dtype(),
        "x is ", name_of(x.dtype()), ", dx is ", name_of(dx.dtype()), ", dweights are ",
        name_of(dq_weight.dtype()), " and ", name_of(dk_weight.dtype()));
  run_op(stream, cpu::qk_norm_backward, cuda::qk_norm_backward, dx, dq_weight, dk_weight, dy, x,
         rstd, q_weight, k_weight, dims, kind);
}

}  // namespace ferry
