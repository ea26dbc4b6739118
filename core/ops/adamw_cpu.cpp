// A fused multiply-add would round once where adamw_kernels.h promises twice. The loop becomes
// vector instructions where the build has -fno-math-errno, which this pragma cannot set for sqrt.
#pragma GCC optimize("fp-contract=off")

#include <cmath>

#include "core/ops/adamw_kernels.h"

namespace ferry::cpu {

void adamw(const Tensor& value, const Tensor& master, const Tensor& exp_avg,
           const Tensor& exp_avg_sq, const Tensor& grad, const AdamwSettings& settings) {
  dispatch_float(value.dtype(), [&]<class T>() {
    using S = compute_t<T>;
    T* out = value.data<T>();
    S* weight = master.data<S>();
    S* mean = exp_avg.data<S>();
    S* square = exp_avg_sq.data<S>();
    const S* gradient = grad.data<S>();
    const AdamwScalars<S> c(settings);
    const int64_t n = value.numel();
    // The master may be the memory of the value: each element is read before it is written.
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const S g = gradient[i] * c.grad_scale;
      const S m = mean[i] + c.one_minus_beta1 * (g - mean[i]);
      const S v = square[i] + c.one_minus_beta2 * (g * g - square[i]);
      const S update = (m / c.correction1) / (std::sqrt(v / c.correction2) + c.eps);
      const S w = weight[i] - c.lr * (update + c.weight_decay * weight[i]);
      mean[i] = m;
      square[i] = v;
      weight[i] = w;
      out[i] = T(w);
    }
  });
}

}  // namespace ferry::cpu
