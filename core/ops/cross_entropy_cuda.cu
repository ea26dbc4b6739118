#include "core/check_cuda.h"
#include "core/ops/cross_entropy_kernels.h"
#include "core/ops/reduce_cuda.cuh"
#include "core/ops/vector_cuda.cuh"
#include "core/stream_cuda.h"

#include <cfloat>
#include <cmath>

namespace ferry::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kUnroll = 4;

// bf16 logits carry fewer digits than the fast exponential has.
template <class T>
__device__ inline float exponential(float x) {
  if constexpr (sizeof(T) == 2) return __expf(x);
  return expf(x);
}

// The largest value so far and the sum of exp(value - largest). It begins with a finite number, so
// that no infinity is subtracted from another.
struct OnlineSum {
  float largest = -FLT_MAX;
  float sum = 0;
};

template <class T, int N>
__device__ inline void include(OnlineSum& online, const float (&x)[N]) {
  float largest = online.largest;
#pragma unroll
  for (int j = 0; j < N; ++j) largest = fmaxf(largest, x[j]);
  float sum = online.sum * exponential<T>(online.largest - largest);
#pragma unroll
  for (int j = 0; j < N; ++j) sum += exponential<T>(x[j] - largest);
  online = {largest, sum};
}

// One block per row. Reads the logits once for the largest and the sum, and again (from L2, where
// the row is still) to write the gradient over them. A row may begin anywhere: single elements come
// before the first 16-byte boundary and after the last whole vector.
template <class T>
__global__ void __launch_bounds__(kThreads)
    row_kernel(float* token_loss, T* logits, const int32_t* labels, const float* mask, int vocab,
               bool with_gradient) {
  constexpr int kWidth = kVector<T>;
  T* row = logits + static_cast<int64_t>(blockIdx.x) * vocab;
  const int to_boundary =
      static_cast<int>((16 - reinterpret_cast<uintptr_t>(row) % 16) % 16 / sizeof(T));
  const int head = to_boundary < vocab ? to_boundary : vocab;
  const int num_vectors = (vocab - head) / kWidth;
  const int tail = head + num_vectors * kWidth;
  // The single element of this thread, if any; a row has fewer than 2 * kWidth of them.
  const int thread = static_cast<int>(threadIdx.x);
  const int single = thread < head ? thread : tail + (thread - head);

  const int label = labels[blockIdx.x];
  const float at_label = to_float(row[label]);
  OnlineSum online;
  for (int first = thread; first < num_vectors; first += kUnroll * kThreads) {
    float x[kUnroll][kWidth];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * kThreads < num_vectors) {
        load<kWidth>(row + head + (first + u * kThreads) * kWidth, x[u]);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * kThreads < num_vectors) include<T>(online, x[u]);
    }
  }
  if (single < vocab) {
    const float x[1] = {to_float(row[single])};
    include<T>(online, x);
  }

  const float largest = block_max(online.largest);
  const float sum = block_sum(online.sum * exponential<T>(online.largest - largest));
  const float weight = mask[blockIdx.x];
  if (thread == 0) token_loss[blockIdx.x] = weight * (largest + logf(sum) - at_label);
  if (!with_gradient) return;

  const float factor = weight / sum;
  for (int first = thread; first < num_vectors; first += kUnroll * kThreads) {
    float x[kUnroll][kWidth];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * kThreads < num_vectors) {
        load<kWidth>(row + head + (first + u * kThreads) * kWidth, x[u]);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * kThreads >= num_vectors) continue;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) x[u][j] = exponential<T>(x[u][j] - largest) * factor;
      store<kWidth>(row + head + (first + u * kThreads) * kWidth, x[u]);
    }
  }
  if (single < vocab) {
    row[single] = from_float<T>(exponential<T>(to_float(row[single]) - largest) * factor);
  }
  __syncthreads();  // the label's element is written last
  if (thread == 0) {
    row[label] = from_float<T>((exponential<T>(at_label - largest) - sum) * factor);
  }
}

// One block: loss_sum += sum of token_loss.
__global__ void __launch_bounds__(1024)
    sum_kernel(float* loss_sum, const float* token_loss, int64_t n) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += 1024) sum += token_loss[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) loss_sum[0] = static_cast<float>(loss_sum[0] + sum);
}

}  // namespace

void cross_entropy(Stream& stream, const Tensor& token_loss, const Tensor& loss_sum,
                   const Tensor& logits, const Tensor& labels, const Tensor& mask,
                   bool with_gradient) {
  const int64_t rows = logits.dim(0), vocab = logits.dim(1);
  if (rows == 0) return;
  CHECK(vocab >= 1 && vocab <= INT32_MAX / 2, "a vocabulary of ", vocab);
  const cudaStream_t handle = cuda_handle(stream);
  dispatch_device_float("cross_entropy", logits.dtype(), [&]<class T>() {
    row_kernel<T><<<grid_size(rows), kThreads, 0, handle>>>(
        token_loss.data<float>(), device_data<T>(logits), labels.data<int32_t>(),
        mask.data<float>(), static_cast<int>(vocab), with_gradient);
    CUDA_CHECK(cudaGetLastError());
  });
  sum_kernel<<<1, 1024, 0, handle>>>(loss_sum.data<float>(), token_loss.data<float>(), rows);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace ferry::cuda
