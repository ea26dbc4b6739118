// Loops over columns carry `ivdep`: outputs may be the same memory as inputs, element by element,
// which g++ cannot see.

#include <cmath>

#include "core/ops/rmsnorm_kernels.h"
#include "core/ops/vector_math_cpu.h"

namespace ferry::cpu {
namespace {

template <class T>
void normalize_row(T* y, compute_t<T>* rstd, const T* x, const T* weight, int64_t width,
                   compute_t<T> eps) {
  using S = compute_t<T>;
  const S squares = lane_sum<S>(width, [&](int64_t i) { return S(x[i]) * S(x[i]); });
  const S factor = S{1} / std::sqrt(squares / S(width) + eps);
  *rstd = factor;
#pragma GCC ivdep
  for (int64_t i = 0; i < width; ++i) y[i] = T(S(x[i]) * factor * S(weight[i]));
}

}  // namespace

void rmsnorm_forward(const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& weight,
                     double eps) {
  dispatch_float(x.dtype(), [&]<class T>() {
    using S = compute_t<T>;
    const int64_t width = x.dim(1);
    for (int64_t row = 0; row < x.dim(0); ++row) {
      normalize_row<T>(y.data<T>() + row * width, rstd.data<S>() + row, x.data<T>() + row * width,
                       weight.data<T>(), width, S(eps));
    }
  });
}

void add_rmsnorm_forward(const Tensor& sum, const Tensor& y, const Tensor& rstd, const Tensor& x,
                         const Tensor& residual, const Tensor& weight, double eps) {
  dispatch_float(x.dtype(), [&]<class T>() {
    using S = compute_t<T>;
    const int64_t width = x.dim(1);
    for (int64_t row = 0; row < x.dim(0); ++row) {
      T* sums = sum.data<T>() + row * width;
      const T* left = x.data<T>() + row * width;
      const T* right = residual.data<T>() + row * width;
#pragma GCC ivdep
      for (int64_t i = 0; i < width; ++i) sums[i] = T(S(left[i]) + S(right[i]));
      normalize_row<T>(y.data<T>() + row * width, rstd.data<S>() + row, sums, weight.data<T>(),
                       width, S(eps));
    }
  });
}

// With n = x * rstd: dx = rstd * (dy*weight - n * mean(dy*weight*n)), dweight = sum of dy*n.
void rmsnorm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dy, const Tensor& x,
                      const Tensor& rstd, const Tensor& weight, const Tensor& dresidual) {
  dispatch_float(x.dtype(), [&]<class T>() {
    using S = compute_t<T>;
    const int64_t width = x.dim(1);
    const T* w = weight.data<T>();
    S* dw = dweight.data<S>();
    for (int64_t row = 0; row < x.dim(0); ++row) {
      const T* in = x.data<T>() + row * width;
      const T* dout = dy.data<T>() + row * width;
      T* din = dx.data<T>() + row * width;
      const S factor = rstd.data<S>()[row];
      const S dot = lane_sum<S>(width, [&](int64_t i) { return S(dout[i]) * S(w[i]) * S(in[i]); });
      const S mean = dot * factor / S(width);
#pragma GCC ivdep
      for (int64_t i = 0; i < width; ++i) dw[i] += S(dout[i]) * (S(in[i]) * factor);
      if (dresidual.defined()) {
        const T* dsum = dresidual.data<T>() + row * width;
#pragma GCC ivdep
        for (int64_t i = 0; i < width; ++i) {
          din[i] = T(factor * (S(dout[i]) * S(w[i]) - S(in[i]) * factor * mean) + S(dsum[i]));
        }
      } else {
#pragma GCC ivdep
        for (int64_t i = 0; i < width; ++i) {
          din[i] = T(factor * (S(dout[i]) * S(w[i]) - S(in[i]) * factor * mean));
        }
      }
    }
  });
}

}  // namespace ferry::cpu
