// A fused multiply-add would round once where adamw_kernels.h promises twice. The loop becomes
// vector instructions where the build has -fno-math-errno, which this pragma cannot set for sqrt.
#pragma GCC optimize("O3", "fp-contract=off")

#include <cmath>

#include "core/ops/adamw_kernels.h"
#include "core/ops/update_state.h"
#include "core/ops/vector_loop_cpu.h"

namespace ferry::cpu {
namespace {

// Reads grad and reads and writes master and both moments once, writes value once: 30 bytes an
// element for BF16 with FP32 state.
template <class T, class M, class V>
struct Adamw {
  using Value = T;
  using S = compute_t<T>;
  static constexpr bool kStreams = std::is_same_v<T, BFloat16>;  // else it may be the master
  T* value;
  S* master;
  M* exp_avg;
  V* exp_avg_sq;
  const S* grad;
  AdamwScalars<S> c;

  [[gnu::always_inline]] S at(int64_t i) const {
    const S g = grad[i] * c.grad_scale;
    const S old_m = static_cast<S>(exp_avg[i]), old_v = static_cast<S>(exp_avg_sq[i]);
    const S m = old_m + c.one_minus_beta1 * (g - old_m);
    const S v = old_v + c.one_minus_beta2 * (g * g - old_v);
    const S update = (m / c.correction1) / (std::sqrt(v / c.correction2) + c.eps);
    const S w = master[i] - c.lr * (update + c.weight_decay * master[i]);
    exp_avg[i] = rounded_to<M>(m);
    exp_avg_sq[i] = rounded_to<V>(v);
    master[i] = w;
    return w;
  }
  [[gnu::always_inline]] void prefetch(int64_t i) const {
    prefetch_block(grad + i);
    prefetch_block(exp_avg + i);
    prefetch_block(exp_avg_sq + i);
    prefetch_block(master + i);
  }
};

}  // namespace

void adamw_at(VectorLevel level, const Tensor& value, const Tensor& master, const Tensor& exp_avg,
              const Tensor& exp_avg_sq, const Tensor& grad, const AdamwSettings& settings) {
  dispatch_float(value.dtype(), [&]<class T>() {
    using S = compute_t<T>;
    dispatch_moment<S>(exp_avg.dtype(), [&]<class M>() {
      dispatch_moment<S>(exp_avg_sq.dtype(), [&]<class V>() {
        run_loop(level,
                 Adamw<T, M, V>{value.data<T>(), master.data<S>(), exp_avg.data<M>(),
                                exp_avg_sq.data<V>(), grad.data<S>(), AdamwScalars<S>(settings)},
                 value.numel());
      });
    });
  });
}

void adamw(const Tensor& value, const Tensor& master, const Tensor& exp_avg,
           const Tensor& exp_avg_sq, const Tensor& grad, const AdamwSettings& settings) {
  adamw_at(vector_level(), value, master, exp_avg, exp_avg_sq, grad, settings);
}

}  // namespace ferry::cpu
