#pragma once

// The two backends of sgd.h, whose results agree bit for bit, with the rules of adamw_kernels.h on
// rounding and on BF16 moments. Arguments are already checked.
//   g      = grad * grad_scale + weight_decay * master
//   m      = momentum * m + g
//   master = master - lr * m
//   value  = master, rounded to nearest even

#include "core/ops/sgd.h"
#include "core/vector_level.h"

namespace ferry {

/// The scalars of one update, rounded to S, the state's type.
template <class S>
struct SgdScalars {
  explicit SgdScalars(const SgdSettings& settings)
      : grad_scale(static_cast<S>(settings.grad_scale)),
        momentum(static_cast<S>(settings.momentum)),
        lr(static_cast<S>(settings.lr)),
        weight_decay(static_cast<S>(settings.weight_decay)) {}

  S grad_scale;
  S momentum;
  S lr;
  S weight_decay;
};

}  // namespace ferry

namespace ferry::cpu {

/// With the widest vectors that vector_level() allows.
void sgd(const Tensor& value, const Tensor& master, const Tensor& buffer, const Tensor& grad,
         const SgdSettings& settings);
/// The same bits with the vectors of `level`, which this processor must have.
void sgd_at(VectorLevel level, const Tensor& value, const Tensor& master, const Tensor& buffer,
            const Tensor& grad, const SgdSettings& settings);

}  // namespace ferry::cpu

namespace ferry::cuda {

void sgd(Stream& stream, const Tensor& value, const Tensor& master, const Tensor& buffer,
         const Tensor& grad, const SgdSettings& settings);

}  // namespace ferry::cuda
