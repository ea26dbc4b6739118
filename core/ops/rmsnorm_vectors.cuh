#pragma once

// RMS norm of rows that can be moved with 16-byte accesses and are not too wide to be held in
// registers: what bounds these kernels is the number of bytes in flight. rmsnorm_cuda.cu has the
// kernels for all other rows.

#include <cuda_runtime.h>

#include "core/ops/packed_cuda.cuh"
#include "core/ops/reduce_cuda.cuh"
#include "core/ops/rmsnorm_rows_cuda.h"
#include "core/ops/vector_cuda.cuh"

namespace ferry::cuda {

inline constexpr int kNormWarps = 4;  // of a block of norm_forward_kernel

// One warp per row: no barrier, so that some warps of a multiprocessor load while others add and
// store. All loads of a row, x and residual, are issued before the first is used. kVectors 16-byte
// vectors per lane hold the row. Reads x (and residual) once, writes y (and sum) once.
template <class T, int kVectors, bool kAdd>
__global__ void __launch_bounds__(kNormWarps * 32)
    norm_forward_kernel(T* y, float* rstd, T* sum, const T* x, const T* residual, const T* weight,
                        const NormRows shape, float eps) {
  constexpr int kWidth = kVector<T>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int columns = static_cast<int>(shape.columns);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kNormWarps + threadIdx.x / 32;
  if (row >= shape.rows) return;
  const int64_t begin = row * shape.stride;
  uint4 v[kVectors] = {}, r[kAdd ? kVectors : 1] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int c = (i * 32 + lane) * kWidth;
    if (c < columns) v[i] = load_once(x + begin + c);
  }
  if constexpr (kAdd) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int c = (i * 32 + lane) * kWidth;
      if (c < columns) r[i] = load_once(residual + begin + c);
    }
  }
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int c = (i * 32 + lane) * kWidth;
    float a[kWidth];
    unpack(v[i], a);
    if constexpr (kAdd) {
      float b[kWidth];
      unpack(r[i], b);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) a[j] += b[j];
      v[i] = pack(a);
      unpack(v[i], a);  // rounded, as sum has it
      if (c < columns) store_packed(sum + begin + c, v[i]);
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) squares += a[j] * a[j];
  }
  squares = warp_sum(squares);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(columns) + eps);
  if (lane == 0) rstd[row * shape.rstd_stride] = scale;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int c = (i * 32 + lane) * kWidth;
    if (c >= columns) continue;
    float a[kWidth], w[kWidth];
    unpack(v[i], a);
    unpack(load_shared_by_all(weight + c), w);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) a[j] = a[j] * scale * w[j];
    store_packed(y + begin + c, pack(a));
  }
}

// dx and dweight as in rmsnorm_cuda.cu. Block b takes kRows neighbouring rows, then those
// gridDim.x * kRows further on, and loads the next ones before it adds up the present ones, so that
// its loads are in flight all the time. A thread has one 16-byte vector of columns, and keeps its
// part of dweight in registers until it leaves it in row b of `partial`. Reads dy, x and dresidual
// once, writes dx once. blockDim.x <= kThreads.
template <class T, int kThreads, int kRows>
__global__ void __launch_bounds__(kThreads, kThreads <= 256 ? 4 : 2)
    norm_backward_kernel(T* dx, float* partial, const T* dy, const T* x, const float* rstd,
                         const T* weight, const T* dresidual, const NormRows shape) {
  constexpr int kWidth = kVector<T>;
  // Of this pass and of the one before, whose sums may still be read.
  __shared__ float of_warp[2][kRows][kThreads / 32];
  struct Loaded {
    uint4 g, v, r;
    float scale;
  };
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int num_warps = static_cast<int>(blockDim.x) / 32;
  const int c = static_cast<int>(threadIdx.x) * kWidth;
  const bool here = c < shape.columns;
  const auto fetch = [&](int64_t row) {
    Loaded loaded{};
    if (here && row < shape.rows) {
      const int64_t at = row * shape.stride + c;
      loaded.g = load_once(dy + at);
      loaded.v = load_once(x + at);
      if (dresidual != nullptr) loaded.r = load_once(dresidual + at);
      loaded.scale = rstd[row * shape.rstd_stride];
    }
    return loaded;
  };
  const uint4 packed_weight = here ? load_shared_by_all(weight + c) : uint4{};
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kRows;
  float dw[kWidth] = {};
  Loaded next[kRows];
#pragma unroll
  for (int k = 0; k < kRows; ++k) next[k] = fetch(first + k);
  int pass = 0;
  for (int64_t row = first; row < shape.rows; row += step, pass ^= 1) {
    Loaded now[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) now[k] = next[k];
#pragma unroll
    for (int k = 0; k < kRows; ++k) next[k] = fetch(row + step + k);
    float w[kWidth];
    unpack(packed_weight, w);
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      float g[kWidth], v[kWidth];
      unpack(now[k].g, g);
      unpack(now[k].v, v);
      float dot = 0;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        dw[j] += g[j] * v[j] * now[k].scale;
        dot += g[j] * w[j] * v[j];
      }
      dot = warp_sum(dot);
      if (lane == 0) of_warp[pass][k][warp] = dot;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const float dot = warp_sum(lane < num_warps ? of_warp[pass][k][lane] : 0.0f);
      const float scale = now[k].scale;
      const float factor = dot * scale * scale * scale / static_cast<float>(shape.columns);
      if (!here || row + k >= shape.rows) continue;
      float g[kWidth], v[kWidth], r[kWidth];
      unpack(now[k].g, g);
      unpack(now[k].v, v);
      unpack(now[k].r, r);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) g[j] = g[j] * w[j] * scale - v[j] * factor + r[j];
      store_packed(dx + (row + k) * shape.stride + c, pack(g));
    }
  }
  if (here) store<kWidth>(partial + blockIdx.x * shape.columns + c, dw);
}

}  // namespace ferry::cuda
