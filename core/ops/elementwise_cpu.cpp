// Outputs may be the memory of inputs, element by element; `ivdep` says so to g++.

#include <array>
#include <cmath>
#include <numbers>

#include "core/ops/elementwise_kernels.h"
#include "core/ops/vector_math_cpu.h"

namespace ferry::cpu {
namespace {

template <class To, class From>
To convert(From x) {
  return To(static_cast<compute_t<To>>(static_cast<compute_t<From>>(x)));
}

float normal_at(const RandomKey& key, uint64_t index) {
  const std::array<uint32_t, 4> words = philox(key, index);
  const float radius_uniform = static_cast<float>((words[0] >> 8) + 1) * 0x1p-24f;
  const float angle = 2 * std::numbers::pi_v<float> * uniform(words[1]);
  return std::sqrt(-2 * std::log(radius_uniform)) * std::cos(angle);
}

}  // namespace

void add(const Tensor& y, const Tensor& a, const Tensor& b) {
  dispatch_float(y.dtype(), [&]<class T>() {
    using S = compute_t<T>;
    T* out = y.data<T>();
    const T* left = a.data<T>();
    const T* right = b.data<T>();
    const int64_t n = y.numel();
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = T(S(left[i]) + S(right[i]));
  });
}

void accumulate(const Tensor& y, const Tensor& x) {
  dispatch_float(y.dtype(), [&]<class T>() {
    dispatch_float(x.dtype(), [&]<class X>() {
      using S = compute_t<T>;
      T* out = y.data<T>();
      const X* in = x.data<X>();
      const int64_t n = y.numel();
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) out[i] = T(S(out[i]) + convert<S>(in[i]));
    });
  });
}

void scale(const Tensor& y, double factor) {
  dispatch_float(y.dtype(), [&]<class T>() {
    using S = compute_t<T>;
    T* out = y.data<T>();
    const S by = static_cast<S>(factor);
    const int64_t n = y.numel();
    for (int64_t i = 0; i < n; ++i) out[i] = T(S(out[i]) * by);
  });
}

void cast(const Tensor& y, const Tensor& x) {
  dispatch_float(y.dtype(), [&]<class T>() {
    dispatch_float(x.dtype(), [&]<class X>() {
      T* out = y.data<T>();
      const X* in = x.data<X>();
      const int64_t n = y.numel();
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) out[i] = convert<T>(in[i]);
    });
  });
}

void fill(const Tensor& y, double value) {
  dispatch_float(y.dtype(), [&]<class T>() {
    T* out = y.data<T>();
    const T element = T(static_cast<compute_t<T>>(value));
    const int64_t n = y.numel();
    for (int64_t i = 0; i < n; ++i) out[i] = element;
  });
}

void fill_normal_rows(const Tensor& y, double std, const RandomKey& key, uint64_t first_index,
                      int64_t row_stride) {
  dispatch_float(y.dtype(), [&]<class T>() {
    using S = compute_t<T>;
    const int64_t width = y.dim(1);
    for (int64_t row = 0; row < y.dim(0); ++row) {
      T* out = y.data<T>() + row * width;
      const uint64_t first = first_index + static_cast<uint64_t>(row * row_stride);
      for (int64_t i = 0; i < width; ++i) {
        out[i] = T(static_cast<S>(std) * S(normal_at(key, first + static_cast<uint64_t>(i))));
      }
    }
  });
}

void dropout(const Tensor& y, const Tensor& x, double probability, const RandomKey& key,
             uint64_t first_index) {
  dispatch_float(y.dtype(), [&]<class T>() {
    using S = compute_t<T>;
    T* out = y.data<T>();
    const T* in = x.data<T>();
    const S keep = static_cast<S>(1 / (1 - probability));
    const float threshold = static_cast<float>(probability);
    const int64_t n = y.numel();
    std::array<uint32_t, 4> words{};
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t index = first_index + static_cast<uint64_t>(i);
      if (i == 0 || index % 4 == 0) words = philox(key, index / 4);
      const bool kept = uniform(words[index % 4]) >= threshold;
      out[i] = T(kept ? S(in[i]) * keep : S{0});
    }
  });
}

void sigmoid_gate_forward(const Tensor& y, const Tensor& x, const Tensor& gate) {
  dispatch_float(y.dtype(), [&]<class T>() {
    using S = compute_t<T>;
    const int64_t width = x.dim(1);
    for (int64_t row = 0; row < x.dim(0); ++row) {
      T* out = y.data<T>() + row * width;
      const T* in = x.data<T>() + row * width;
      const S factor = sigmoid(S(gate.data<T>()[row]));
#pragma GCC ivdep
      for (int64_t i = 0; i < width; ++i) out[i] = T(S(in[i]) * factor);
    }
  });
}

void sigmoid_gate_backward(const Tensor& dx, const Tensor& dgate, const Tensor& dy, const Tensor& x,
                           const Tensor& gate) {
  dispatch_float(x.dtype(), [&]<class T>() {
    using S = compute_t<T>;
    const int64_t width = x.dim(1);
    for (int64_t row = 0; row < x.dim(0); ++row) {
      T* din = dx.data<T>() + row * width;
      const T* dout = dy.data<T>() + row * width;
      const T* in = x.data<T>() + row * width;
      const S factor = sigmoid(S(gate.data<T>()[row]));
      const S dot = lane_sum<S>(width, [&](int64_t i) { return S(dout[i]) * S(in[i]); });
      dgate.data<T>()[row] = T(dot * factor * (S{1} - factor));
#pragma GCC ivdep
      for (int64_t i = 0; i < width; ++i) din[i] = T(S(dout[i]) * factor);
    }
  });
}

}  // namespace ferry::cpu
