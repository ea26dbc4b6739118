#include "core/check_cuda.h"
#include "core/ops/map_cuda.cuh"
#include "core/ops/permute_kernels.h"
#include "core/ops/vector_cuda.cuh"
#include "core/stream_cuda.h"

namespace ferry::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// One warp per token, four words in flight per lane: reads x once and writes it to those of the
// token's k rows that are there.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    permute_kernel(Word* rows, const Word* x, const int32_t* row_of_slot, int64_t num_tokens,
                   int64_t num_rows, int top_k, int64_t row_words) {
  constexpr int kUnroll = 4;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (token >= num_tokens) return;
  const Word* from = x + token * row_words;
  const int32_t* my_rows = row_of_slot + token * top_k;
  for (int64_t first = threadIdx.x % 32; first < row_words; first += kUnroll * 32) {
    Word words[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (first + i * 32 < row_words) words[i] = from[first + i * 32];
    }
    for (int j = 0; j < top_k; ++j) {
      if (my_rows[j] >= num_rows) continue;
      Word* to = rows + my_rows[j] * row_words;
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        if (first + i * 32 < row_words) to[first + i * 32] = words[i];
      }
    }
  }
}

// One warp per token, four rows in flight: gathers and adds the token's k rows in order. Reads rows
// (and residual) once, writes y once.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(T* y, const T* rows, const T* residual, const int32_t* row_of_slot,
                   int64_t num_tokens, int64_t num_rows, int top_k, int64_t columns) {
  constexpr int kUnroll = 4;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (token >= num_tokens) return;
  const int32_t* my_rows = row_of_slot + token * top_k;
  for (int64_t c = threadIdx.x % 32 * kWidth; c < columns; c += 32 * kWidth) {
    float sum[kWidth] = {};
    if (residual != nullptr) load<kWidth>(residual + token * columns + c, sum);
    for (int first = 0; first < top_k; first += kUnroll) {
      float v[kUnroll][kWidth];
      bool there[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        there[u] = first + u < top_k && my_rows[first + u] < num_rows;
        if (there[u]) load<kWidth>(rows + my_rows[first + u] * columns + c, v[u]);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (!there[u]) continue;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sum[j] += v[u][j];
      }
    }
    store<kWidth>(y + token * columns + c, sum);
  }
}

struct GatherScalars {
  float* out;
  const float* in;
  const int32_t* index;
  int64_t num_in;
  int divisor;
  template <int N>
  __device__ void apply(int64_t i) const {
    static_assert(N == 1);
    const int32_t at = index[i] / divisor;
    out[i] = at < num_in ? in[at] : 0.0f;
  }
};

struct SumCopies {
  float* out;
  const float* in;
  int64_t copies;
  template <int N>
  __device__ void apply(int64_t i) const {
    static_assert(N == 1);
    float sum = 0;
    for (int64_t j = 0; j < copies; ++j) sum += in[i * copies + j];
    out[i] = sum;
  }
};

}  // namespace

void permute_rows(Stream& stream, const Tensor& rows, const Tensor& x, const RoutingPlan& plan) {
  if (rows.numel() == 0) return;
  const int64_t num_tokens = x.dim(0), columns = x.dim(1);
  const int top_k = static_cast<int>(plan.row_of_slot.dim(0) / num_tokens);
  dispatch_device_float("permute_rows", x.dtype(), [&]<class T>() {
    T* to = device_data<T>(rows);
    const T* from = device_data<T>(x);
    const int32_t* row_of_slot = plan.row_of_slot.data<int32_t>();
    const unsigned blocks = grid_size(ceil_div(num_tokens, kWarps));
    const cudaStream_t handle = cuda_handle(stream);
    if (columns % kVector<T> == 0 && aligned16(to, from)) {
      permute_kernel<<<blocks, kThreads, 0, handle>>>(
          reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(from), row_of_slot,
          num_tokens, rows.dim(0), top_k, columns / kVector<T>);
    } else {
      permute_kernel<<<blocks, kThreads, 0, handle>>>(to, from, row_of_slot, num_tokens,
                                                      rows.dim(0), top_k, columns);
    }
    CUDA_CHECK(cudaGetLastError());
  });
}

void combine_rows(Stream& stream, const Tensor& y, const Tensor& rows, const Tensor& residual,
                  const RoutingPlan& plan) {
  if (y.numel() == 0) return;
  const int64_t num_tokens = y.dim(0), columns = y.dim(1);
  dispatch_device_float("combine_rows", y.dtype(), [&]<class T>() {
    T* to = device_data<T>(y);
    const T* from = device_data<T>(rows);
    const T* before = device_data<T>(residual);
    const bool vectors = columns % kVector<T> == 0 && aligned16(to, from, before);
    const auto kernel = vectors ? combine_kernel<T, kVector<T>> : combine_kernel<T, 1>;
    kernel<<<grid_size(ceil_div(num_tokens, kWarps)), kThreads, 0, cuda_handle(stream)>>>(
        to, from, before, plan.row_of_slot.data<int32_t>(), num_tokens, rows.dim(0),
        static_cast<int>(plan.row_of_slot.dim(0) / num_tokens), columns);
    CUDA_CHECK(cudaGetLastError());
  });
}

void gather_scalars(Stream& stream, const Tensor& out, const Tensor& in, const Tensor& index,
                    int64_t divisor) {
  require_f32("gather_scalars", in.dtype());
  launch_map<1>(stream, out.numel(), false,
                GatherScalars{out.data<float>(), in.data<float>(), index.data<int32_t>(),
                              in.numel(), static_cast<int>(divisor)});
}

void sum_copies(Stream& stream, const Tensor& out, const Tensor& in, int64_t copies) {
  require_f32("sum_copies", in.dtype());
  launch_map<1>(stream, out.numel(), false, SumCopies{out.data<float>(), in.data<float>(), copies});
}

}  // namespace ferry::cuda
