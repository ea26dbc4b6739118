// The full-width QK norm with the heads cut over ranks. The sums of a row come from outside, so
// that only these are made by whole blocks, and all else goes by elements.

#include "core/check_cuda.h"
#include "core/ops/column_sums_cuda.h"
#include "core/ops/qk_norm_kernels.h"
#include "core/ops/reduce_cuda.cuh"
#include "core/ops/vector_cuda.cuh"
#include "core/stream_cuda.h"

#include <algorithm>

namespace ferry::cuda {
namespace {

constexpr int kThreads = 256;

// A row of qkv: queries, keys, values. Numbers of columns.
struct Widths {
  int64_t rows;
  int queries;
  int normed;  // queries and keys
  int all;
  float query_count;  // elements of a row on all ranks
  float key_count;

  __device__ bool is_query(int column) const { return column < queries; }
};

Widths widths_of(const AttentionDims& dims, int64_t parts) {
  CHECK(dims.qkv_width() <= INT32_MAX / 2, "qk_norm of rows of ", dims.qkv_width(), " elements");
  return {dims.tokens(),
          static_cast<int>(dims.q_width()),
          static_cast<int>(dims.q_width() + dims.kv_width()),
          static_cast<int>(dims.qkv_width()),
          static_cast<float>(parts * dims.q_width()),
          static_cast<float>(parts * dims.kv_width())};
}

template <class T>
struct Weights {
  const T* queries;
  const T* keys;

  template <int kWidth>
  __device__ void load_at(const Widths& widths, int column, float (&w)[kWidth]) const {
    load<kWidth>(widths.is_query(column) ? queries + column : keys + (column - widths.queries), w);
  }
};

// One block per row: the sums over its queries and over its keys of dy * weight * x, or of x * x if
// dy is null.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    sums_kernel(float* sums, const T* dy, const T* x, const Weights<T> weights,
                const Widths widths) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * widths.all;
  float of_queries = 0, of_keys = 0;
  for (int c = static_cast<int>(threadIdx.x) * kWidth; c < widths.normed; c += kThreads * kWidth) {
    float v[kWidth], g[kWidth], w[kWidth];
    load<kWidth>(x + begin + c, v);
    if (dy != nullptr) {
      load<kWidth>(dy + begin + c, g);
      weights.load_at(widths, c, w);
    }
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum += dy != nullptr ? g[j] * w[j] * v[j] : v[j] * v[j];
    of_queries += widths.is_query(c) ? sum : 0.0f;
    of_keys += widths.is_query(c) ? 0.0f : sum;
  }
  of_queries = block_sum(of_queries);
  of_keys = block_sum(of_keys);
  if (threadIdx.x != 0) return;
  sums[static_cast<int64_t>(blockIdx.x) * 2] = of_queries;
  sums[static_cast<int64_t>(blockIdx.x) * 2 + 1] = of_keys;
}

// One block per row. Reads x once, writes y once; values are copied.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    apply_kernel(T* y, float* rstd, const T* x, const float* sums, const Weights<T> weights,
                 const Widths widths, float eps) {
  const int64_t row = blockIdx.x, begin = row * widths.all;
  const float of_queries = 1.0f / sqrtf(sums[row * 2] / widths.query_count + eps);
  const float of_keys = 1.0f / sqrtf(sums[row * 2 + 1] / widths.key_count + eps);
  if (threadIdx.x == 0) {
    rstd[row * 2] = of_queries;
    rstd[row * 2 + 1] = of_keys;
  }
  for (int c = static_cast<int>(threadIdx.x) * kWidth; c < widths.all; c += kThreads * kWidth) {
    float v[kWidth];
    load<kWidth>(x + begin + c, v);
    if (c < widths.normed) {
      const float scale = widths.is_query(c) ? of_queries : of_keys;
      float w[kWidth];
      weights.load_at(widths, c, w);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) v[j] = v[j] * scale * w[j];
    }
    store<kWidth>(y + begin + c, v);
  }
}

// A thread has the same kWidth columns of rows b, b + gridDim.x, ..., where b = blockIdx.x; it adds
// up its part of the weights' gradients in registers and leaves it in row b of `partial`. Reads dy
// and x once, writes dx once:
//   dx = rstd * (dy*weight) - x * rstd^3 / D * sum(dy*weight*x), D elements on all ranks.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(T* dx, float* partial, const T* dy, const T* x, const float* rstd,
                    const float* sums, const Weights<T> weights, const Widths widths) {
  const int c = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kWidth;
  if (c >= widths.all) return;
  if (c >= widths.normed) {  // values are copied
    if (dx == dy) return;
    for (int64_t row = blockIdx.x; row < widths.rows; row += gridDim.x) {
      float g[kWidth];
      load<kWidth>(dy + row * widths.all + c, g);
      store<kWidth>(dx + row * widths.all + c, g);
    }
    return;
  }
  const int section = widths.is_query(c) ? 0 : 1;
  const float count = section == 0 ? widths.query_count : widths.key_count;
  float w[kWidth], dw[kWidth] = {};
  weights.load_at(widths, c, w);
  for (int64_t row = blockIdx.x; row < widths.rows; row += gridDim.x) {
    float g[kWidth], v[kWidth];
    load<kWidth>(dy + row * widths.all + c, g);
    load<kWidth>(x + row * widths.all + c, v);
    const float scale = rstd[row * 2 + section];
    const float factor = sums[row * 2 + section] * scale * scale * scale / count;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      dw[j] += g[j] * v[j] * scale;
      g[j] = g[j] * w[j] * scale - v[j] * factor;
    }
    store<kWidth>(dx + row * widths.all + c, g);
  }
  store<kWidth>(partial + static_cast<int64_t>(blockIdx.x) * widths.normed + c, dw);
}

template <class T>
Weights<T> weights_of(const Tensor& q_weight, const Tensor& k_weight) {
  return {device_data<T>(q_weight), device_data<T>(k_weight)};
}

// Calls body.operator()<kWidth>(): with vectors, a thread's columns are all of one section.
template <class T, class Body>
void choose_width(const Widths& widths, bool aligned, Body&& body) {
  const bool fits = widths.queries % kVector<T> == 0 && widths.normed % kVector<T> == 0 &&
                    widths.all % kVector<T> == 0;
  if (fits && aligned)
    body.template operator()<kVector<T>>();
  else
    body.template operator()<1>();
}

// dy and the weights may be undefined.
void row_sums(Stream& stream, const Tensor& sums, const Tensor& dy, const Tensor& x,
              const Tensor& q_weight, const Tensor& k_weight, const AttentionDims& dims) {
  if (dims.tokens() == 0) return;
  const Widths widths = widths_of(dims, 1);
  dispatch_device_float("qk_norm", x.dtype(), [&]<class T>() {
    const T* g = device_data<T>(dy);
    const T* in = device_data<T>(x);
    const Weights<T> weights = weights_of<T>(q_weight, k_weight);
    const bool aligned = aligned16(g, in, weights.queries, weights.keys);
    choose_width<T>(widths, aligned, [&]<int kWidth>() {
      sums_kernel<T, kWidth><<<grid_size(widths.rows), kThreads, 0, cuda_handle(stream)>>>(
          sums.data<float>(), g, in, weights, widths);
      CUDA_CHECK(cudaGetLastError());
    });
  });
}

}  // namespace

void qk_norm_squares(Stream& stream, const Tensor& sums, const Tensor& x,
                     const AttentionDims& dims) {
  row_sums(stream, sums, Tensor(), x, Tensor(), Tensor(), dims);
}

void qk_norm_products(Stream& stream, const Tensor& sums, const Tensor& dy, const Tensor& x,
                      const Tensor& q_weight, const Tensor& k_weight, const AttentionDims& dims) {
  row_sums(stream, sums, dy, x, q_weight, k_weight, dims);
}

void qk_norm_apply(Stream& stream, const Tensor& y, const Tensor& rstd, const Tensor& x,
                   const Tensor& sums, const Tensor& q_weight, const Tensor& k_weight,
                   const AttentionDims& dims, int64_t parts, double eps) {
  if (dims.tokens() == 0) return;
  const Widths widths = widths_of(dims, parts);
  dispatch_device_float("qk_norm", x.dtype(), [&]<class T>() {
    T* out = device_data<T>(y);
    const T* in = device_data<T>(x);
    const Weights<T> weights = weights_of<T>(q_weight, k_weight);
    const bool aligned = aligned16(out, in, weights.queries, weights.keys);
    choose_width<T>(widths, aligned, [&]<int kWidth>() {
      apply_kernel<T, kWidth><<<grid_size(widths.rows), kThreads, 0, cuda_handle(stream)>>>(
          out, rstd.data<float>(), in, sums.data<float>(), weights, widths,
          static_cast<float>(eps));
      CUDA_CHECK(cudaGetLastError());
    });
  });
}

void qk_norm_apply_backward(Stream& stream, const Tensor& dx, const Tensor& dq_weight,
                            const Tensor& dk_weight, const Tensor& dy, const Tensor& x,
                            const Tensor& rstd, const Tensor& sums, const Tensor& q_weight,
                            const Tensor& k_weight, const AttentionDims& dims, int64_t parts) {
  if (dims.tokens() == 0) return;
  const Widths widths = widths_of(dims, parts);
  const int64_t blocks = std::min<int64_t>(widths.rows, kPartialRows);
  const Tensor partial =
      Tensor::empty(stream, "workspace: qk_norm", {blocks, widths.normed}, DType::F32);
  dispatch_device_float("qk_norm", x.dtype(), [&]<class T>() {
    T* out = device_data<T>(dx);
    const T* g = device_data<T>(dy);
    const T* in = device_data<T>(x);
    const Weights<T> weights = weights_of<T>(q_weight, k_weight);
    const bool aligned = aligned16(out, g, in, weights.queries, weights.keys);
    choose_width<T>(widths, aligned, [&]<int kWidth>() {
      const int64_t chunks = ceil_div(widths.all, kThreads * kWidth);
      CHECK(chunks <= 65535, "qk_norm of rows of ", widths.all, " elements");
      const dim3 grid(grid_size(blocks), static_cast<unsigned>(chunks));
      backward_kernel<T, kWidth><<<grid, kThreads, 0, cuda_handle(stream)>>>(
          out, partial.data<float>(), g, in, rstd.data<float>(), sums.data<float>(), weights,
          widths);
      CUDA_CHECK(cudaGetLastError());
    });
  });
  sum_columns(stream, dq_weight.data<float>(), partial.data<float>(), blocks, widths.queries,
              widths.normed, true);
  sum_columns(stream, dk_weight.data<float>(), partial.data<float>() + widths.queries, blocks,
              widths.normed - widths.queries, widths.normed, true);
}

}  // namespace ferry::cuda
