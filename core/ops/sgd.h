#pragma once

// Stochastic gradient descent with momentum (B. T. Polyak, 1964; in the form of I. Sutskever et
// al., 2013, without the Nesterov term). All state in FP32 (F64 for F64).

#include "core/tensor.h"

namespace ferry {

struct SgdSettings {
  double lr = 0;
  double momentum = 0.9;
  double weight_decay = 0;  // 0 for parameters without decay
  double grad_scale = 1;    // multiplies the gradient: normalisation and clipping
};

/// One update, elementwise, in this order and precision on every device; each operation is rounded
/// to nearest on its own, as in adamw.h:
///   g = grad * grad_scale + weight_decay * master; m = momentum * m + g
///   master = master - lr * m; value = round(master)
/// master, grad: accumulate_dtype(value). If value has that dtype itself, master may be the same
/// memory as value. m (`buffer`): the same dtype, or BF16 where that is F32, rounded as in adamw.h.
void sgd(Stream& stream, const Tensor& value, const Tensor& master, const Tensor& buffer,
         const Tensor& grad, const SgdSettings& settings);

/// The same bits for tensors in host memory that nobody else uses, by the calling thread, at once.
void sgd_on_host(const Tensor& value, const Tensor& master, const Tensor& buffer,
                 const Tensor& grad, const SgdSettings& settings);

}  // namespace ferry
