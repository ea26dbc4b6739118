#include "core/check_cuda.h"
#include "core/ops/reduce_cuda.cuh"
#include "core/ops/swiglu_cuda.cuh"
#include "core/ops/swiglu_kernels.h"
#include "core/ops/vector_cuda.cuh"
#include "core/stream_cuda.h"

namespace ferry::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 2;

// One warp per row, kUnroll vectors of gate and up in flight per lane. Reads gate_up once, writes h
// once.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(T* h, const T* gate_up, const float* prob, int64_t rows, int64_t width) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  const T* gate = gate_up + row * 2 * width;
  const T* up = gate + width;
  const float factor = prob != nullptr ? prob[row] : 1.0f;
  for (int64_t first = lane * kWidth; first < width; first += kUnroll * 32 * kWidth) {
    float g[kUnroll][kWidth], u[kUnroll][kWidth];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t c = first + i * 32 * kWidth;
      if (c >= width) continue;
      load<kWidth>(gate + c, g[i]);
      load<kWidth>(up + c, u[i]);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t c = first + i * 32 * kWidth;
      if (c >= width) continue;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) g[i][j] = swiglu<T>(g[i][j], u[i][j], factor);
      store<kWidth>(h + row * width + c, g[i]);
    }
  }
}

// One warp per row, which also adds up dprob. Reads dh and gate_up once, writes dgate_up once,
// which may be the memory of gate_up: a lane reads what it overwrites.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(T* dgate_up, float* dprob, const T* dh, const T* gate_up, const float* prob,
                    int64_t rows, int64_t width) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  const int64_t begin = row * 2 * width;
  const float factor = prob != nullptr ? prob[row] : 1.0f;
  float sum = 0;
  for (int64_t first = lane * kWidth; first < width; first += kUnroll * 32 * kWidth) {
    float g[kUnroll][kWidth], u[kUnroll][kWidth], d[kUnroll][kWidth];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t c = first + i * 32 * kWidth;
      if (c >= width) continue;
      load<kWidth>(gate_up + begin + c, g[i]);
      load<kWidth>(gate_up + begin + width + c, u[i]);
      load<kWidth>(dh + row * width + c, d[i]);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t c = first + i * 32 * kWidth;
      if (c >= width) continue;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const SwigluGradients gradients = swiglu_gradients<T>(d[i][j], g[i][j], u[i][j], factor);
        sum += gradients.prob;
        g[i][j] = gradients.gate;
        u[i][j] = gradients.up;
      }
      store<kWidth>(dgate_up + begin + c, g[i]);
      store<kWidth>(dgate_up + begin + width + c, u[i]);
    }
  }
  if (dprob == nullptr) return;
  sum = warp_sum(sum);
  if (lane == 0) dprob[row] = sum;
}

}  // namespace

void swiglu_forward(Stream& stream, const Tensor& h, const Tensor& gate_up, const Tensor& prob) {
  const int64_t rows = h.dim(0), width = h.dim(1);
  if (rows == 0) return;
  dispatch_device_float("swiglu", h.dtype(), [&]<class T>() {
    T* out = device_data<T>(h);
    const T* in = device_data<T>(gate_up);
    const bool vectors = width % kVector<T> == 0 && aligned16(out, in);
    const auto kernel = vectors ? forward_kernel<T, kVector<T>> : forward_kernel<T, 1>;
    kernel<<<grid_size(ceil_div(rows, kThreads / 32)), kThreads, 0, cuda_handle(stream)>>>(
        out, in, device_data<float>(prob), rows, width);
    CUDA_CHECK(cudaGetLastError());
  });
}

void swiglu_backward(Stream& stream, const Tensor& dgate_up, const Tensor& dprob, const Tensor& dh,
                     const Tensor& gate_up, const Tensor& prob) {
  const int64_t rows = dh.dim(0), width = dh.dim(1);
  if (rows == 0) return;
  dispatch_device_float("swiglu", dh.dtype(), [&]<class T>() {
    T* out = device_data<T>(dgate_up);
    const T* d = device_data<T>(dh);
    const T* in = device_data<T>(gate_up);
    const bool vectors = width % kVector<T> == 0 && aligned16(out, d, in);
    const auto kernel = vectors ? backward_kernel<T, kVector<T>> : backward_kernel<T, 1>;
    kernel<<<grid_size(ceil_div(rows, kThreads / 32)), kThreads, 0, cuda_handle(stream)>>>(
        out, device_data<float>(dprob), d, in, device_data<float>(prob), rows, width);
    CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace ferry::cuda
