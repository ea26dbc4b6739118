#pragma once

// The two backends of rmsnorm.h. Arguments are already checked.

#include "core/ops/rmsnorm.h"

namespace ferry::cpu {

void rmsnorm_forward(const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& weight,
                     double eps);
void add_rmsnorm_forward(const Tensor& sum, const Tensor& y, const Tensor& rstd, const Tensor& x,
                         const Tensor& residual, const Tensor& weight, double eps);
void rmsnorm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dy, const Tensor& x,
                      const Tensor& rstd, const Tensor& weight, const Tensor& dresidual);

}  // namespace ferry::cpu

namespace ferry::cuda {

void rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& rstd, const Tensor& x,
                     const Tensor& weight, double eps);
void add_rmsnorm_forward(Stream& stream, const Tensor& sum, const Tensor& y, const Tensor& rstd,
                         const Tensor& x, const Tensor& residual, const Tensor& weight, double eps);
void rmsnorm_backward(Stream& stream, const Tensor& dx, const Tensor& dweight, const Tensor& dy,
                      const Tensor& x, const Tensor& rstd, const Tensor& weight,
                      const Tensor& dresidual);

}  // namespace ferry::cuda
