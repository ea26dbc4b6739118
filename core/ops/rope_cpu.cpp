#include <algorithm>
#include <cmath>

#include "core/ops/rope_kernels.h"

namespace ferry::cpu {
namespace {

template <class T>
void rotate(const Tensor& y, const Tensor& x, const Tensor& cosine, const Tensor& sine,
            const AttentionDims& dims, Rotation rotation) {
  using S = compute_t<T>;
  const int64_t half = dims.head_dim / 2, width = dims.qkv_width();
  const S sign = rotation == Rotation::Forward ? S{1} : S{-1};
  for (int64_t t = 0; t < dims.tokens(); ++t) {
    const S* cos_row = cosine.data<S>() + t % dims.seq * half;
    const S* sin_row = sine.data<S>() + t % dims.seq * half;
    const T* from = x.data<T>() + t * width;
    T* to = y.data<T>() + t * width;
    for (int64_t head = 0; head < dims.heads + dims.kv_heads; ++head) {
      const T* from_head = from + head * dims.head_dim;
      T* to_head = to + head * dims.head_dim;
// Element i of `to` depends on elements i of `from` only, which may be the same memory.
#pragma GCC ivdep
      for (int64_t i = 0; i < half; ++i) {
        const S a = static_cast<S>(from_head[i]), b = static_cast<S>(from_head[i + half]);
        const S c = cos_row[i], s = sign * sin_row[i];
        to_head[i] = static_cast<T>(a * c - b * s);
        to_head[i + half] = static_cast<T>(b * c + a * s);
      }
    }
    if (from != to) {
      const int64_t values = dims.q_width() + dims.kv_width();
      std::copy(from + values, from + width, to + values);
    }
  }
}

}  // namespace

void rope_table(const Tensor& cosine, const Tensor& sine, double theta) {
  dispatch_float(cosine.dtype(), [&]<class T>() {
    const int64_t half = cosine.dim(1);
    for (int64_t i = 0; i < half; ++i) {
      const double frequency = std::pow(theta, -static_cast<double>(i) / static_cast<double>(half));
      for (int64_t position = 0; position < cosine.dim(0); ++position) {
        const double angle = static_cast<double>(position) * frequency;
        cosine.data<T>()[position * half + i] = static_cast<T>(std::cos(angle));
        sine.data<T>()[position * half + i] = static_cast<T>(std::sin(angle));
      }
    }
  });
}

void rope(const Tensor& y, const Tensor& x, const Tensor& cosine, const Tensor& sine,
          const AttentionDims& dims, Rotation rotation) {
  dispatch_float(x.dtype(), [&]<class T>() { rotate<T>(y, x, cosine, sine, dims, rotation); });
}

}  // namespace ferry::cpu
