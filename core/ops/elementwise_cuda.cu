#include "core/ops/elementwise_kernels.h"
#include "core/ops/map_cuda.cuh"
#include "core/ops/reduce_cuda.cuh"

#include <numbers>
#include <type_traits>

namespace ferry::cuda {
namespace {

template <class T>
struct Add {
  T* y;
  const T* a;
  const T* b;
  template <int N>
  __device__ void apply(int64_t i) const {
    float left[N], right[N];
    load<N>(a + i, left);
    load<N>(b + i, right);
#pragma unroll
    for (int j = 0; j < N; ++j) left[j] += right[j];
    store<N>(y + i, left);
  }
};

template <class T, class X>
struct Accumulate {
  T* y;
  const X* x;
  template <int N>
  __device__ void apply(int64_t i) const {
    float sum[N], term[N];
    load<N>(y + i, sum);
    load<N>(x + i, term);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += term[j];
    store<N>(y + i, sum);
  }
};

template <class T>
struct Scale {
  T* y;
  float factor;
  template <int N>
  __device__ void apply(int64_t i) const {
    float v[N];
    load<N>(y + i, v);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] *= factor;
    store<N>(y + i, v);
  }
};

template <class T, class X>
struct Cast {
  T* y;
  const X* x;
  template <int N>
  __device__ void apply(int64_t i) const {
    float v[N];
    load<N>(x + i, v);
    store<N>(y + i, v);
  }
};

template <class T>
struct Fill {
  T* y;
  float value;
  template <int N>
  __device__ void apply(int64_t i) const {
    float v[N];
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] = value;
    store<N>(y + i, v);
  }
};

template <class T>
struct FillNormal {
  T* y;
  float deviation;
  RandomKey key;
  uint64_t first_index;
  int64_t columns;
  int64_t row_stride;
  template <int N>
  __device__ void apply(int64_t i) const {
    float v[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int64_t row = (i + j) / columns, column = (i + j) % columns;
      const auto words =
          philox(key, first_index + static_cast<uint64_t>(row * row_stride + column));
      // In (0, 1], so that the logarithm is finite.
      const float radius_uniform = static_cast<float>((words[0] >> 8) + 1) * 0x1p-24f;
      const float angle = 2 * std::numbers::pi_v<float> * uniform(words[1]);
      v[j] = deviation * (sqrtf(-2 * logf(radius_uniform)) * cosf(angle));
    }
    store<N>(y + i, v);
  }
};

template <class T>
struct Dropout {
  T* y;
  const T* x;
  float threshold;
  float keep;  // 1 / (1 - threshold)
  RandomKey key;
  uint64_t first_index;
  template <int N>
  __device__ void apply(int64_t i) const {
    float v[N];
    load<N>(x + i, v);
    std::array<uint32_t, 4> words{};
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const uint64_t index = first_index + static_cast<uint64_t>(i + j);
      const int word = static_cast<int>(index % 4);
      if (j == 0 || word == 0) words = philox(key, index / 4);
      const uint32_t random = word == 0   ? words[0]
                              : word == 1 ? words[1]
                              : word == 2 ? words[2]
                                          : words[3];
      v[j] = uniform(random) >= threshold ? v[j] * keep : 0.0f;
    }
    store<N>(y + i, v);
  }
};

constexpr int kThreads = 256;

// One warp per row. Reads x once, writes y once.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    sigmoid_gate_forward_kernel(T* y, const T* x, const T* gate, int64_t rows, int64_t columns) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  const float factor = 1.0f / (1.0f + expf(-to_float(gate[row])));
  for (int64_t c = lane * kWidth; c < columns; c += 32 * kWidth) {
    float v[kWidth];
    load<kWidth>(x + row * columns + c, v);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) v[j] *= factor;
    store<kWidth>(y + row * columns + c, v);
  }
}

// One warp per row. Reads dy and x once, writes dx once.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    sigmoid_gate_backward_kernel(T* dx, T* dgate, const T* dy, const T* x, const T* gate,
                                 int64_t rows, int64_t columns) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  const float factor = 1.0f / (1.0f + expf(-to_float(gate[row])));
  float dot = 0;
  for (int64_t c = lane * kWidth; c < columns; c += 32 * kWidth) {
    float g[kWidth], v[kWidth];
    load<kWidth>(dy + row * columns + c, g);
    load<kWidth>(x + row * columns + c, v);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      dot += g[j] * v[j];
      g[j] *= factor;
    }
    store<kWidth>(dx + row * columns + c, g);
  }
  dot = warp_sum(dot);
  if (lane == 0) dgate[row] = from_float<T>(dot * factor * (1.0f - factor));
}

// One thread's vector: 16 bytes of the wider type.
template <class T, class X>
constexpr int kMixed = kVector<T> < kVector<X> ? kVector<T> : kVector<X>;

}  // namespace

void add(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b) {
  dispatch_device_float("add", y.dtype(), [&]<class T>() {
    const Add<T> body{device_data<T>(y), device_data<T>(a), device_data<T>(b)};
    launch_map<kVector<T>>(stream, y.numel(), aligned16(body.y, body.a, body.b), body);
  });
}

void accumulate(Stream& stream, const Tensor& y, const Tensor& x) {
  dispatch_device_float("accumulate", y.dtype(), [&]<class T>() {
    dispatch_device_float("accumulate", x.dtype(), [&]<class X>() {
      const Accumulate<T, X> body{device_data<T>(y), device_data<X>(x)};
      launch_map<kMixed<T, X>>(stream, y.numel(), aligned16(body.y, body.x), body);
    });
  });
}

void scale(Stream& stream, const Tensor& y, double factor) {
  dispatch_device_float("scale", y.dtype(), [&]<class T>() {
    const Scale<T> body{device_data<T>(y), static_cast<float>(factor)};
    launch_map<kVector<T>>(stream, y.numel(), aligned16(body.y), body);
  });
}

void cast(Stream& stream, const Tensor& y, const Tensor& x) {
  dispatch_device_float("cast", y.dtype(), [&]<class T>() {
    dispatch_device_float("cast", x.dtype(), [&]<class X>() {
      const Cast<T, X> body{device_data<T>(y), device_data<X>(x)};
      launch_map<kMixed<T, X>>(stream, y.numel(), aligned16(body.y, body.x), body);
    });
  });
}

void fill(Stream& stream, const Tensor& y, double value) {
  dispatch_device_float("fill", y.dtype(), [&]<class T>() {
    const Fill<T> body{device_data<T>(y), static_cast<float>(value)};
    launch_map<kVector<T>>(stream, y.numel(), aligned16(body.y), body);
  });
}

void fill_normal_rows(Stream& stream, const Tensor& y, double std, const RandomKey& key,
                      uint64_t first_index, int64_t row_stride) {
  dispatch_device_float("fill_normal", y.dtype(), [&]<class T>() {
    const FillNormal<T> body{device_data<T>(y), static_cast<float>(std), key, first_index, y.dim(1),
                             row_stride};
    launch_map<4>(stream, y.numel(), aligned16(body.y), body);
  });
}

void dropout(Stream& stream, const Tensor& y, const Tensor& x, double probability,
             const RandomKey& key, uint64_t first_index) {
  dispatch_device_float("dropout", y.dtype(), [&]<class T>() {
    const Dropout<T> body{device_data<T>(y),
                          device_data<T>(x),
                          static_cast<float>(probability),
                          static_cast<float>(1 / (1 - probability)),
                          key,
                          first_index};
    launch_map<kVector<T>>(stream, y.numel(), aligned16(body.y, body.x), body);
  });
}

void sigmoid_gate_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& gate) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  if (rows == 0) return;
  dispatch_device_float("sigmoid_gate", x.dtype(), [&]<class T>() {
    T* out = device_data<T>(y);
    const T* in = device_data<T>(x);
    const bool vectors = columns % kVector<T> == 0 && aligned16(out, in);
    const auto kernel =
        vectors ? sigmoid_gate_forward_kernel<T, kVector<T>> : sigmoid_gate_forward_kernel<T, 1>;
    kernel<<<grid_size(ceil_div(rows, kThreads / 32)), kThreads, 0, cuda_handle(stream)>>>(
        out, in, device_data<T>(gate), rows, columns);
    CUDA_CHECK(cudaGetLastError());
  });
}

void sigmoid_gate_backward(Stream& stream, const Tensor& dx, const Tensor& dgate, const Tensor& dy,
                           const Tensor& x, const Tensor& gate) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  if (rows == 0) return;
  dispatch_device_float("sigmoid_gate", x.dtype(), [&]<class T>() {
    T* out = device_data<T>(dx);
    const T* g = device_data<T>(dy);
    const T* in = device_data<T>(x);
    const bool vectors = columns % kVector<T> == 0 && aligned16(out, g, in);
    const auto kernel =
        vectors ? sigmoid_gate_backward_kernel<T, kVector<T>> : sigmoid_gate_backward_kernel<T, 1>;
    kernel<<<grid_size(ceil_div(rows, kThreads / 32)), kThreads, 0, cuda_handle(stream)>>>(
        out, device_data<T>(dgate), g, in, device_data<T>(gate), rows, columns);
    CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace ferry::cuda
