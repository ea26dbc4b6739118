#pragma once

// The two backends of qk_norm.h. Arguments are already checked.

#include "core/ops/qk_norm.h"

namespace ferry::cpu {

void qk_norm_forward(const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& q_weight,
                     const Tensor& k_weight, const AttentionDims& dims, QkNormKind kind,
                     double eps);
void qk_norm_backward(const Tensor& dx, const Tensor& dq_weight, const Tensor& dk_weight,
                      const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& q_weight,
                      const Tensor& k_weight, const AttentionDims& dims, QkNormKind kind);
void qk_norm_squares(const Tensor& sums, const Tensor& x, const AttentionDims& dims);
void qk_norm_apply(const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& sums,
                   const Tensor& q_weight, const Tensor& k_weight, const AttentionDims& dims,
                   int64_t parts, double eps);
void qk_norm_products(const Tensor& sums, const Tensor& dy, const Tensor& x, const Tensor& q_weight,
                      const Tensor& k_weight, const AttentionDims& dims);
void qk_norm_apply_backward(const Tensor& dx, const Tensor& dq_weight, const Tensor& dk_weight,
                            const Tensor& dy, const Tensor& x, const Tensor& rstd,
                            const Tensor& sums, const Tensor& q_weight, const Tensor& k_weight,
                            const AttentionDims& dims, int64_t parts);

}  // namespace ferry::cpu

namespace ferry::cuda {

void qk_norm_forward(Stream& stream, const Tensor& y, const Tensor& rstd, const Tensor& x,
                     const Tensor& q_weight, const Tensor& k_weight, const AttentionDims& dims,
                     QkNormKind kind, double eps);
void qk_norm_backward(Stream& stream, const Tensor& dx, const Tensor& dq_weight,
                      const Tensor& dk_weight, const Tensor& dy, const Tensor& x,
                      const Tensor& rstd, const Tensor& q_weight, const Tensor& k_weight,
                      const AttentionDims& dims, QkNormKind kind);
void qk_norm_squares(Stream& stream, const Tensor& sums, const Tensor& x,
                     const AttentionDims& dims);
void qk_norm_apply(Stream& stream, const Tensor& y, const Tensor& rstd, const Tensor& x,
                   const Tensor& sums, const Tensor& q_weight, const Tensor& k_weight,
                   const AttentionDims& dims, int64_t parts, double eps);
void qk_norm_products(Stream& stream, const Tensor& sums, const Tensor& dy, const Tensor& x,
                      const Tensor& q_weight, const Tensor& k_weight, const AttentionDims& dims);
void qk_norm_apply_backward(Stream& stream, const Tensor& dx, const Tensor& dq_weight,
                            const Tensor& dk_weight, const Tensor& dy, const Tensor& x,
                            const Tensor& rstd, const Tensor& sums, const Tensor& q_weight,
                            const Tensor& k_weight, const AttentionDims& dims, int64_t parts);

}  // namespace ferry::cuda
