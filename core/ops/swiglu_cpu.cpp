#include <vector>

#include "core/ops/swiglu_kernels.h"
#include "core/ops/vector_math_cpu.h"

namespace ferry::cpu {

void swiglu_forward(const Tensor& h, const Tensor& gate_up, const Tensor& prob) {
  dispatch_float(h.dtype(), [&]<class T>() {
    using S = compute_t<T>;
    const int64_t width = h.dim(1);
    for (int64_t row = 0; row < h.dim(0); ++row) {
      const T* gate = gate_up.data<T>() + row * 2 * width;
      const T* up = gate + width;
      T* out = h.data<T>() + row * width;
      const S factor = prob.defined() ? prob.data<S>()[row] : S{1};
#pragma GCC ivdep
      for (int64_t i = 0; i < width; ++i) {
        const S g = S(gate[i]);
        out[i] = T(g * sigmoid(g) * S(up[i]) * factor);
      }
    }
  });
}

void swiglu_backward(const Tensor& dgate_up, const Tensor& dprob, const Tensor& dh,
                     const Tensor& gate_up, const Tensor& prob) {
  dispatch_float(dh.dtype(), [&]<class T>() {
    using S = compute_t<T>;
    const int64_t width = dh.dim(1);
    std::vector<S> dprob_terms(width);
    S* terms = dprob_terms.data();
    for (int64_t row = 0; row < dh.dim(0); ++row) {
      const T* gate = gate_up.data<T>() + row * 2 * width;
      const T* up = gate + width;
      T* dgate = dgate_up.data<T>() + row * 2 * width;
      T* dup = dgate + width;
      const T* dout = dh.data<T>() + row * width;
      const S factor = prob.defined() ? prob.data<S>()[row] : S{1};
      // dgate_up may be the memory of gate_up: each element is read before it is written.
#pragma GCC ivdep
      for (int64_t i = 0; i < width; ++i) {
        const S g = S(gate[i]), u = S(up[i]), d = S(dout[i]);
        const S s = sigmoid(g);
        const S silu = g * s;
        terms[i] = d * silu * u;
        dgate[i] = T(d * factor * u * s * (S{1} + g * (S{1} - s)));
        dup[i] = T(d * factor * silu);
      }
      if (dprob.defined()) {
        dprob.data<S>()[row] = lane_sum<S>(width, [&](int64_t i) { return terms[i]; });
      }
    }
  });
}

}  // namespace ferry::cpu
