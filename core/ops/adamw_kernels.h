#pragma once

// The two backends of adamw.h, whose results agree bit for bit. Arguments are already checked.
//
// For that, each operation below is rounded to nearest on its own, in the type S of the state:
// nothing is contracted into a fused multiply-add, division and square root are the exact ones of
// IEEE 754, and subnormal numbers are kept. (CUDA: __fmul_rn and its like.) Moments in BF16 are
// widened first, and rounded when all else is computed.
//   g      = grad * grad_scale
//   m      = m + one_minus_beta1 * (g - m)
//   v      = v + one_minus_beta2 * (g * g - v)
//   update = (m / correction1) / (sqrt(v / correction2) + eps)
//   master = master - lr * (update + weight_decay * master)
//   value  = master, rounded to nearest even

#include <cmath>

#include "core/ops/adamw.h"
#include "core/vector_level.h"

namespace ferry {

/// The scalars of one update, computed in double and then rounded to S, the state's type.
template <class S>
struct AdamwScalars {
  explicit AdamwScalars(const AdamwSettings& settings)
      : grad_scale(static_cast<S>(settings.grad_scale)),
        one_minus_beta1(static_cast<S>(1 - settings.beta1)),
        one_minus_beta2(static_cast<S>(1 - settings.beta2)),
        correction1(
            static_cast<S>(1 - std::pow(settings.beta1, static_cast<double>(settings.step)))),
        correction2(
            static_cast<S>(1 - std::pow(settings.beta2, static_cast<double>(settings.step)))),
        eps(static_cast<S>(settings.eps)),
        lr(static_cast<S>(settings.lr)),
        weight_decay(static_cast<S>(settings.weight_decay)) {}

  S grad_scale;
  S one_minus_beta1;
  S one_minus_beta2;
  S correction1;
  S correction2;
  S eps;
  S lr;
  S weight_decay;
};

}  // namespace ferry

namespace ferry::cpu {

void adamw(const Tensor& value, const Tensor& master, const Tensor& exp_avg,
           const Tensor& exp_avg_sq, const Tensor& grad, const AdamwSettings& settings);
/// The same bits with the vectors of `level`, which this processor must have.
void adamw_at(VectorLevel level, const Tensor& value, const Tensor& master, const Tensor& exp_avg,
              const Tensor& exp_avg_sq, const Tensor& grad, const AdamwSettings& settings);

}  // namespace ferry::cpu

namespace ferry::cuda {

void adamw(Stream& stream, const Tensor& value, const Tensor& master, const Tensor& exp_avg,
           const Tensor& exp_avg_sq, const Tensor& grad, const AdamwSettings& settings);

}  // namespace ferry::cuda
