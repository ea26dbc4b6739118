#include "core/check_cuda.h"
#include "core/ops/column_sums_cuda.h"
#include "core/ops/reduce_cuda.cuh"
#include "core/ops/rmsnorm_kernels.h"
#include "core/ops/rmsnorm_rows_cuda.h"
#include "core/ops/rmsnorm_vectors.cuh"
#include "core/ops/vector_cuda.cuh"
#include "core/stream_cuda.h"

#include <algorithm>

namespace ferry::cuda {
namespace {

constexpr int kMaxThreads = 1024;

// The kernels of rmsnorm_vectors.cuh are for rows of whole vectors that fit into registers, these
// for all others.

// One block per row at a time. A thread keeps its kVectors vectors of the row in registers: reads x
// (and residual) once, writes y (and sum) once.
template <class T, int kWidth, int kVectors, bool kAdd>
__global__ void __launch_bounds__(kMaxThreads)
    forward_kernel(T* y, float* rstd, T* sum, const T* x, const T* residual, const T* weight,
                   const NormRows shape, float eps) {
  const int columns = static_cast<int>(shape.columns);
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const int64_t begin = row * shape.stride;
    float v[kVectors][kWidth];
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int c = (i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kWidth;
      if (c < columns) load<kWidth>(x + begin + c, v[i]);
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int c = (i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kWidth;
      if (c >= columns) continue;
      if constexpr (kAdd) {
        float r[kWidth];
        load<kWidth>(residual + begin + c, r);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) v[i][j] = to_float(from_float<T>(v[i][j] + r[j]));
        store<kWidth>(sum + begin + c, v[i]);
      }
#pragma unroll
      for (int j = 0; j < kWidth; ++j) squares += v[i][j] * v[i][j];
    }
    squares = block_sum(squares);
    const float scale = 1.0f / sqrtf(squares / static_cast<float>(columns) + eps);
    if (threadIdx.x == 0) rstd[row * shape.rstd_stride] = scale;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int c = (i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kWidth;
      if (c >= columns) continue;
      float w[kWidth];
      load<kWidth>(weight + c, w);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) v[i][j] = v[i][j] * scale * w[j];
      store<kWidth>(y + begin + c, v[i]);
    }
  }
}

// dx = rstd * (dy*weight) - x * rstd^3 / D * sum(dy*weight*x) + dresidual; dweight = sum of
// dy * x * rstd over the rows.
//
// Block b takes rows b, b + gridDim.x, ...; a thread keeps its columns' part of dweight in
// registers and leaves it in row b of `partial`. Reads dy, x and dresidual once, writes dx once.
template <class T, int kWidth, int kVectors>
__global__ void __launch_bounds__(kMaxThreads)
    backward_kernel(T* dx, float* partial, const T* dy, const T* x, const float* rstd,
                    const T* weight, const T* dresidual, const NormRows shape) {
  const int columns = static_cast<int>(shape.columns);
  float dw[kVectors][kWidth] = {};
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const int64_t begin = row * shape.stride;
    const float scale = rstd[row * shape.rstd_stride];
    float g[kVectors][kWidth], v[kVectors][kWidth], r[kVectors][kWidth] = {};
    float dot = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int c = (i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kWidth;
      if (c >= columns) continue;
      float w[kWidth];
      load<kWidth>(dy + begin + c, g[i]);
      load<kWidth>(x + begin + c, v[i]);
      if (dresidual != nullptr) load<kWidth>(dresidual + begin + c, r[i]);
      load<kWidth>(weight + c, w);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        dw[i][j] += g[i][j] * v[i][j] * scale;
        g[i][j] *= w[j];
        dot += g[i][j] * v[i][j];
      }
    }
    dot = block_sum(dot);
    const float factor = dot * scale * scale * scale / static_cast<float>(columns);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int c = (i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kWidth;
      if (c >= columns) continue;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) g[i][j] = g[i][j] * scale - v[i][j] * factor + r[i][j];
      store<kWidth>(dx + begin + c, g[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int c = (i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kWidth;
    if (c < columns) store<kWidth>(partial + blockIdx.x * shape.columns + c, dw[i]);
  }
}

// Calls body.operator()<kWidth, kVectors>(threads) with the first of the choices whose block holds
// a row.
template <int kWidth, int kVectors, class Body>
bool try_block(int64_t columns, Body&& body) {
  const int64_t threads = ceil_div(ceil_div(columns, kWidth * kVectors), 32) * 32;
  if (threads > kMaxThreads) return false;
  body.template operator()<kWidth, kVectors>(static_cast<unsigned>(threads));
  return true;
}

// 16 single elements per thread where vectors are not possible.
template <class T, int kVectors, class Body>
void choose_block(bool vectors, int64_t columns, Body&& body) {
  const bool done = vectors ? try_block<kVector<T>, kVectors>(columns, body) ||
                                  try_block<kVector<T>, 4>(columns, body)
                            : try_block<1, 16>(columns, body);
  const int64_t most = kMaxThreads * (vectors ? kVector<T> * 4 : 16);
  if (!done) {
    fail(ExitCode::Usage, "an RMS norm on a GPU takes rows of at most ", most, " elements, not ",
         columns, ": choose a smaller hidden size, or run.backend=cpu");
  }
}

// Calls body.operator()<kVectors>() with the fewest 16-byte vectors per lane that hold a row.
template <class T, class Body>
bool try_warp(int64_t columns, Body&& body) {
  const int64_t vectors = ceil_div(columns, 32 * kVector<T>);
  if (vectors > 16) return false;
  if (vectors <= 4) {
    body.template operator()<4>();
  } else if (vectors <= 8) {
    body.template operator()<8>();
  } else {
    body.template operator()<16>();
  }
  return true;
}

// Calls body.operator()<kThreads, kRows>(threads) with a thread for each 16-byte vector of a row;
// small blocks take two rows at a time, to have as much in flight as large ones.
template <class T, class Body>
bool try_threads(int64_t columns, Body&& body) {
  const int64_t threads = ceil_div(columns, 32 * kVector<T>) * 32;
  if (threads > 512) return false;
  if (threads <= 128) {
    body.template operator()<128, 2>(static_cast<unsigned>(threads));
  } else if (threads <= 256) {
    body.template operator()<256, 1>(static_cast<unsigned>(threads));
  } else {
    body.template operator()<512, 1>(static_cast<unsigned>(threads));
  }
  return true;
}

template <class T>
bool fits_vectors(const NormRows& shape) {
  return shape.columns % kVector<T> == 0 && shape.stride % kVector<T> == 0;
}

}  // namespace

void rmsnorm_rows_forward(Stream& stream, DType dtype, void* y, float* rstd, void* sum,
                          const void* x, const void* residual, const void* weight,
                          const NormRows& shape, double eps) {
  if (shape.rows == 0) return;
  const cudaStream_t handle = cuda_handle(stream);
  dispatch_device_float("rmsnorm", dtype, [&]<class T>() {
    const auto launch = [&](auto kernel, int64_t blocks, unsigned threads) {
      kernel<<<grid_size(blocks), threads, 0, handle>>>(
          static_cast<T*>(y), rstd, static_cast<T*>(sum), static_cast<const T*>(x),
          static_cast<const T*>(residual), static_cast<const T*>(weight), shape,
          static_cast<float>(eps));
      CUDA_CHECK(cudaGetLastError());
    };
    const bool vectors = fits_vectors<T>(shape) && aligned16(y, sum, x, residual, weight);
    if (vectors && try_warp<T>(shape.columns, [&]<int kVectors>() {
          launch(residual != nullptr ? norm_forward_kernel<T, kVectors, true>
                                     : norm_forward_kernel<T, kVectors, false>,
                 ceil_div(shape.rows, kNormWarps), kNormWarps * 32);
        })) {
      return;
    }
    // Enough blocks to fill the device with the smallest block; results do not depend on the
    // number.
    const int64_t blocks = std::min<int64_t>(shape.rows, 32 * num_multiprocessors(stream));
    choose_block<T, 4>(vectors, shape.columns, [&]<int kWidth, int kVectors>(unsigned threads) {
      launch(residual != nullptr ? forward_kernel<T, kWidth, kVectors, true>
                                 : forward_kernel<T, kWidth, kVectors, false>,
             blocks, threads);
    });
  });
}

void rmsnorm_rows_backward(Stream& stream, DType dtype, void* dx, float* dweight, const void* dy,
                           const void* x, const float* rstd, const void* weight,
                           const void* dresidual, const NormRows& shape) {
  if (shape.rows == 0) return;
  const cudaStream_t handle = cuda_handle(stream);
  dispatch_device_float("rmsnorm", dtype, [&]<class T>() {
    const auto launch = [&](auto kernel, int64_t blocks, unsigned threads) {
      const Tensor partial =
          Tensor::empty(stream, "workspace: rmsnorm", {blocks, shape.columns}, DType::F32);
      kernel<<<grid_size(blocks), threads, 0, handle>>>(
          static_cast<T*>(dx), partial.data<float>(), static_cast<const T*>(dy),
          static_cast<const T*>(x), rstd, static_cast<const T*>(weight),
          static_cast<const T*>(dresidual), shape);
      CUDA_CHECK(cudaGetLastError());
      sum_columns(stream, dweight, partial.data<float>(), blocks, shape.columns, shape.columns,
                  true);
    };
    const bool vectors = fits_vectors<T>(shape) && aligned16(dx, dy, x, dresidual, weight);
    if (vectors && try_threads<T>(shape.columns, [&]<int kThreads, int kRows>(unsigned threads) {
          // As many blocks as __launch_bounds__ lets 132 multiprocessors hold.
          const int64_t most = kThreads <= 256 ? kPartialRows : kPartialRows / 2;
          launch(norm_backward_kernel<T, kThreads, kRows>,
                 std::min(ceil_div(shape.rows, kRows), most), threads);
        })) {
      return;
    }
    choose_block<T, 1>(vectors, shape.columns, [&]<int kWidth, int kVectors>(unsigned threads) {
      launch(backward_kernel<T, kWidth, kVectors>, std::min<int64_t>(shape.rows, kPartialRows),
             threads);
    });
  });
}

void rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& rstd, const Tensor& x,
                     const Tensor& weight, double eps) {
  const NormRows shape{.rows = x.dim(0), .columns = x.dim(1), .stride = x.dim(1)};
  rmsnorm_rows_forward(stream, x.dtype(), y.raw(), static_cast<float*>(rstd.raw()), nullptr,
                       x.raw(), nullptr, weight.raw(), shape, eps);
}

void add_rmsnorm_forward(Stream& stream, const Tensor& sum, const Tensor& y, const Tensor& rstd,
                         const Tensor& x, const Tensor& residual, const Tensor& weight,
                         double eps) {
  const NormRows shape{.rows = x.dim(0), .columns = x.dim(1), .stride = x.dim(1)};
  rmsnorm_rows_forward(stream, x.dtype(), y.raw(), static_cast<float*>(rstd.raw()), sum.raw(),
                       x.raw(), residual.raw(), weight.raw(), shape, eps);
}

void rmsnorm_backward(Stream& stream, const Tensor& dx, const Tensor& dweight, const Tensor& dy,
                      const Tensor& x, const Tensor& rstd, const Tensor& weight,
                      const Tensor& dresidual) {
  const NormRows shape{.rows = x.dim(0), .columns = x.dim(1), .stride = x.dim(1)};
  rmsnorm_rows_backward(stream, x.dtype(), dx.raw(), static_cast<float*>(dweight.raw()), dy.raw(),
                        x.raw(), static_cast<const float*>(rstd.raw()), weight.raw(),
                        dresidual.defined() ? dresidual.raw() : nullptr, shape);
}

}  // namespace ferry::cuda
