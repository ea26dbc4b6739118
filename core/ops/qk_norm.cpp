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

// Of the full kind: x, which other tensors of the row must be like, and `sums`.
void check_rows(const Tensor& x, const Tensor& sums, const AttentionDims& dims) {
  check_attention_dims(dims);
  CHECK_SHAPE(x, {dims.tokens(), dims.qkv_width()});
  CHECK_SHAPE(sums, {dims.tokens(), 2});
  CHECK(sums.dtype() == accumulate_dtype(x.dtype()), "x is ", name_of(x.dtype()), ", sums are ",
        name_of(sums.dtype()));
}

void check_gradients(const Tensor& dx, const Tensor& dq_weight, const Tensor& dk_weight,
                     const Tensor& x, const Tensor& q_weight, const Tensor& k_weight) {
  CHECK(dx.defined() && dx.shape() == x.shape(), "dx has shape ", dx.shape(), ", not ", x.shape());
  CHECK_SHAPE(dq_weight, {q_weight.dim(0)});
  CHECK_SHAPE(dk_weight, {k_weight.dim(0)});
  const DType wide = accumulate_dtype(x.dtype());
  CHECK(dx.dtype() == x.dtype() && dq_weight.dtype() == wide && dk_weight.dtype() == wide, "x is ",
        name_of(x.dtype()), ", dx is ", name_of(dx.dtype()), ", dweights are ",
        name_of(dq_weight.dtype()), " and ", name_of(dk_weight.dtype()));
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
  check_gradients(dx, dq_weight, dk_weight, x, q_weight, k_weight);
  run_op(stream, cpu::qk_norm_backward, cuda::qk_norm_backward, dx, dq_weight, dk_weight, dy, x,
         rstd, q_weight, k_weight, dims, kind);
}

void qk_norm_squares(Stream& stream, const Tensor& sums, const Tensor& x,
                     const AttentionDims& dims) {
  check_rows(x, sums, dims);
  run_op(stream, cpu::qk_norm_squares, cuda::qk_norm_squares, sums, x, dims);
}

void qk_norm_apply(Stream& stream, const Tensor& y, const Tensor& rstd, const Tensor& x,
                   const Tensor& sums, const Tensor& q_weight, const Tensor& k_weight,
                   const AttentionDims& dims, int64_t parts, double eps) {
  check_qk_norm(y, x, rstd, q_weight, k_weight, dims, QkNormKind::Full);
  check_rows(x, sums, dims);
  CHECK(parts > 0, parts, " parts");
  run_op(stream, cpu::qk_norm_apply, cuda::qk_norm_apply, y, rstd, x, sums, q_weight, k_weight,
         dims, parts, eps);
}

void qk_norm_products(Stream& stream, const Tensor& sums, const Tensor& dy, const Tensor& x,
                      const Tensor& q_weight, const Tensor& k_weight, const AttentionDims& dims) {
  check_rows(x, sums, dims);
  check_qk_norm(dy, x, sums, q_weight, k_weight, dims, QkNormKind::Full);
  run_op(stream, cpu::qk_norm_products, cuda::qk_norm_products, sums, dy, x, q_weight, k_weight,
         dims);
}

void qk_norm_apply_backward(Stream& stream, const Tensor& dx, const Tensor& dq_weight,
                            const Tensor& dk_weight, const Tensor& dy, const Tensor& x,
                            const Tensor& rstd, const Tensor& sums, const Tensor& q_weight,
                            const Tensor& k_weight, const AttentionDims& dims, int64_t parts) {
  check_qk_norm(dy, x, rstd, q_weight, k_weight, dims, QkNormKind::Full);
  check_rows(x, sums, dims);
  check_gradients(dx, dq_weight, dk_weight, x, q_weight, k_weight);
  CHECK(parts > 0, parts, " parts");
  run_op(stream, cpu::qk_norm_apply_backward, cuda::qk_norm_apply_backward, dx, dq_weight,
         dk_weight, dy, x, rstd, sums, q_weight, k_weight, dims, parts);
}

}  // namespace ferry
