#include "core/check_cuda.h"
#include "core/ops/rope_kernels.h"
#include "core/ops/vector_cuda.cuh"
#include "core/stream_cuda.h"

#include <algorithm>

namespace ferry::cuda {
namespace {

constexpr int kThreads = 256;

// One thread per entry.
__global__ void __launch_bounds__(kThreads)
    table_kernel(float* cosine, float* sine, int64_t num_entries, int64_t half, double theta) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= num_entries) return;
  const double frequency = pow(theta, -static_cast<double>(i % half) / static_cast<double>(half));
  const double angle = static_cast<double>(i / half) * frequency;
  cosine[i] = static_cast<float>(cos(angle));
  sine[i] = static_cast<float>(sin(angle));
}

// One block per token; a thread takes a vector of a head's first half and its partner in the
// second. Heads from `rotated` on are copied. Reads x once and writes y once; the tables come from
// L2. y may be the memory of x: a thread reads all that it overwrites before it writes.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(T* y, const T* x, const float* cosine, const float* sine, int64_t seq,
                int64_t row_width, int half, int heads, int rotated, float sign) {
  const int64_t token = blockIdx.x;
  const int64_t position = token % seq;
  const int vectors_per_half = half / kWidth;
  for (int item = threadIdx.x; item < heads * vectors_per_half; item += blockDim.x) {
    const int head = item / vectors_per_half;
    const int i = item % vectors_per_half * kWidth;
    const int64_t at = token * row_width + static_cast<int64_t>(head) * 2 * half + i;
    float a[kWidth], b[kWidth];
    load<kWidth>(x + at, a);
    load<kWidth>(x + at + half, b);
    if (head < rotated) {
      float c[kWidth], s[kWidth];
      load<kWidth>(cosine + position * half + i, c);
      load<kWidth>(sine + position * half + i, s);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const float first = a[j], second = b[j], sin_j = sign * s[j];
        a[j] = first * c[j] - second * sin_j;
        b[j] = second * c[j] + first * sin_j;
      }
    }
    store<kWidth>(y + at, a);
    store<kWidth>(y + at + half, b);
  }
}

}  // namespace

void rope_table(Stream& stream, const Tensor& cosine, const Tensor& sine, double theta) {
  require_f32("rope", cosine.dtype());
  const int64_t num_entries = cosine.numel();
  if (num_entries == 0) return;
  table_kernel<<<grid_size(ceil_div(num_entries, kThreads)), kThreads, 0, cuda_handle(stream)>>>(
      cosine.data<float>(), sine.data<float>(), num_entries, cosine.dim(1), theta);
  CUDA_CHECK(cudaGetLastError());
}

void rope(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& cosine,
          const Tensor& sine, const AttentionDims& dims, Rotation rotation) {
  if (dims.tokens() == 0) return;
  dispatch_device_float("rope", x.dtype(), [&]<class T>() {
    T* out = device_data<T>(y);
    const T* in = device_data<T>(x);
    const float* c = cosine.data<float>();
    const float* s = sine.data<float>();
    const int half = static_cast<int>(dims.head_dim / 2);
    const int rotated = static_cast<int>(dims.heads + dims.kv_heads);
    const int heads = out == in ? rotated : rotated + static_cast<int>(dims.kv_heads);
    const bool vectors = half % kVector<T> == 0 && aligned16(out, in, c, s);
    const auto kernel = vectors ? rope_kernel<T, kVector<T>> : rope_kernel<T, 1>;
    const int64_t items = int64_t{heads} * half / (vectors ? kVector<T> : 1);
    const auto threads =
        static_cast<unsigned>(std::min<int64_t>(kThreads, ceil_div(items, 32) * 32));
    kernel<<<grid_size(dims.tokens()), threads, 0, cuda_handle(stream)>>>(
        out, in, c, s, dims.seq, dims.qkv_width(), half, heads, rotated,
        rotation == Rotation::Forward ? 1.0f : -1.0f);
    CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace ferry::cuda
