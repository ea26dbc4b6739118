#include <algorithm>

#include "core/ops/reduce_kernels.h"
#include "core/ops/vector_math_cpu.h"

namespace ferry::cpu {
namespace {

double squares_of(const Tensor& x) {
  return dispatch_float(x.dtype(), [&]<class T>() {
    const T* in = x.data<T>();
    return lane_sum<double>(x.numel(), [&](int64_t i) {
      const double value = static_cast<compute_t<T>>(in[i]);
      return value * value;
    });
  });
}

}  // namespace

void sum_squares(const Tensor& total, const Tensor& x) { total.data<double>()[0] += squares_of(x); }

void mean_square(const Tensor& total, const Tensor& x, double divisor) {
  dispatch_float(total.dtype(), [&]<class S>() {
    total.data<S>()[0] = S(total.data<S>()[0] + static_cast<compute_t<S>>(squares_of(x) / divisor));
  });
}

void column_sums(const Tensor& sums, const Tensor& x) {
  dispatch_float(x.dtype(), [&]<class T>() {
    const int64_t width = x.dim(1);
    T* sum = sums.data<T>();
    std::fill(sum, sum + width, T(compute_t<T>{0}));
    for (int64_t row = 0; row < x.dim(0); ++row) {
      const T* in = x.data<T>() + row * width;
#pragma GCC ivdep
      for (int64_t i = 0; i < width; ++i) sum[i] = T(sum[i] + in[i]);
    }
  });
}

void accumulate_counts(const Tensor& totals, const Tensor& values) {
  int64_t* total = totals.data<int64_t>();
  const int32_t* value = values.data<int32_t>();
  const int64_t n = values.numel();
  for (int64_t i = 0; i < n; ++i) total[i] += value[i];
}

}  // namespace ferry::cpu
