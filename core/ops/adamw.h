#pragma once

// AdamW (I. Loshchilov, F. Hutter, 2019; decoupled weight decay). State in FP32 (F64 for F64); the
// moments may be BF16.

#include "core/tensor.h"

namespace ferry {

struct AdamwSettings {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;  // 0 for parameters without decay
  int64_t step = 1;         // counts from 1, for the bias correction
  double grad_scale = 1;    // multiplies the gradient: normalisation and clipping
};

/// One update, elementwise, in this order and precision on every device:
///   g = grad * grad_scale; m = m + (1-beta1)*(g - m); v = v + (1-beta2)*(g*g - v)
///   update = (m / (1-beta1^step)) / (sqrt(v / (1-beta2^step)) + eps)
///   master = master - lr * (update + weight_decay * master); value = round(master)
/// master, grad: accumulate_dtype(value). If value has that dtype itself, master may be the same
/// memory as value. m, v: the same dtype, or each BF16 where that is F32: then they are widened,
/// and rounded to nearest even as they are stored; the update uses them as they were before.
/// The scalars are computed in double and rounded to the master's dtype.
/// The same bits everywhere, subnormal numbers and the sign of zero included. What is NaN on one
/// device is NaN on all, but its payload may differ. On the host it is the same at all vector
/// levels if one input of the element is NaN and the others are finite: that input's, made quiet.
void adamw(Stream& stream, const Tensor& value, const Tensor& master, const Tensor& exp_avg,
           const Tensor& exp_avg_sq, const Tensor& grad, const AdamwSettings& settings);

/// The same bits for tensors in host memory that nobody else uses, by the calling thread, at once.
/// With the widest vectors that vector_level() (core/vector_level.h) allows.
void adamw_on_host(const Tensor& value, const Tensor& master, const Tensor& exp_avg,
                   const Tensor& exp_avg_sq, const Tensor& grad, const AdamwSettings& settings);

}  // namespace ferry
