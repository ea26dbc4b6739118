#pragma once

// Root-mean-square norm (B. Zhang, R. Sennrich, 2019): y = x * rstd * weight with
// rstd = 1 / sqrt(mean(x^2) + eps), statistics in accumulate_dtype.
// T rows, D columns. x, y, residual: [T, D] in the activation dtype; weight: [D] in the same dtype;
// rstd: [T] in accumulate_dtype.

#include "core/tensor.h"

namespace ferry {

void rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& rstd, const Tensor& x,
                     const Tensor& weight, double eps);

/// sum = x + residual (rounded to its dtype), then y = rmsnorm(sum). sum may be the same memory as
/// x or residual.
void add_rmsnorm_forward(Stream& stream, const Tensor& sum, const Tensor& y, const Tensor& rstd,
                         const Tensor& x, const Tensor& residual, const Tensor& weight, double eps);

/// dx = gradient through the norm + dresidual (may be undefined); dweight [D] += in
/// accumulate_dtype, summed in a fixed order. dx may be the same memory as dy or dresidual.
void rmsnorm_backward(Stream& stream, const Tensor& dx, const Tensor& dweight, const Tensor& dy,
                      const Tensor& x, const Tensor& rstd, const Tensor& weight,
                      const Tensor& dresidual);

}  // namespace ferry
