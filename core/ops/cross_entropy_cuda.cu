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

// How a block of kThreads threads goes over `count` neighbouring logits. They may begin anywhere:
// single elements come before the first 16-byte boundary and after the last whole vector.
template <class T>
struct Row {
  static constexpr int kWidth = kVector<T>;

  T* begin;
  int count;
  int head;  // elements before the first vector
  int num_vectors;
  int single;  // the single element of this thread, if below count

  __device__ Row(T* row, int num_elements) : begin(row), count(num_elements) {
    const int to_boundary =
        static_cast<int>((16 - reinterpret_cast<uintptr_t>(row) % 16) % 16 / sizeof(T));
    head = to_boundary < count ? to_boundary : count;
    num_vectors = (count - head) / kWidth;
    // A row has fewer than 2 * kWidth single elements.
    const int tail = head + num_vectors * kWidth, thread = static_cast<int>(threadIdx.x);
    single = thread < head ? thread : tail + (thread - head);
  }

  __device__ T* vector_at(int idx) const { return begin + head + idx * kWidth; }

  // Calls body(idx, x) with each of this thread's vectors, kUnroll of which are read at a time.
  template <class Body>
  __device__ void for_each_vector(const Body& body) const {
    for (int first = static_cast<int>(threadIdx.x); first < num_vectors;
         first += kUnroll * kThreads) {
      float x[kUnroll][kWidth];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (first + u * kThreads < num_vectors) {
          load<kWidth>(vector_at(first + u * kThreads), x[u]);
        }
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (first + u * kThreads < num_vectors) body(first + u * kThreads, x[u]);
      }
    }
  }

  // Of this thread's elements.
  __device__ OnlineSum online_sum() const {
    OnlineSum online;
    for_each_vector([&](int, const float(&x)[kWidth]) { include<T>(online, x); });
    if (single < count) {
      const float x[1] = {to_float(begin[single])};
      include<T>(online, x);
    }
    return online;
  }

  // Writes exp(logit - largest) * factor over this thread's logits.
  __device__ void write_softmax(float largest, float factor) const {
    for_each_vector([&](int idx, float(&x)[kWidth]) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) x[j] = exponential<T>(x[j] - largest) * factor;
      store<kWidth>(vector_at(idx), x);
    });
    if (single < count) {
      begin[single] = from_float<T>(exponential<T>(to_float(begin[single]) - largest) * factor);
    }
  }
};

// One block per row. Reads the logits once for the largest and the sum, and again (from L2, where
// the row is still) to write the gradient over them.
template <class T>
__global__ void __launch_bounds__(kThreads)
    row_kernel(float* token_loss, T* logits, const int32_t* labels, const float* mask, int vocab,
               bool with_gradient) {
  const Row<T> row(logits + static_cast<int64_t>(blockIdx.x) * vocab, vocab);
  const int label = labels[blockIdx.x];
  const float at_label = to_float(row.begin[label]);
  const OnlineSum online = row.online_sum();
  const float largest = block_max(online.largest);
  const float sum = block_sum(online.sum * exponential<T>(online.largest - largest));
  const float weight = mask[blockIdx.x];
  if (threadIdx.x == 0) token_loss[blockIdx.x] = weight * (largest + logf(sum) - at_label);
  if (!with_gradient) return;

  const float factor = weight / sum;
  row.write_softmax(largest, factor);
  __syncthreads();  // the label's element is written last
  if (threadIdx.x == 0) {
    row.begin[label] = from_float<T>((exponential<T>(at_label - largest) - sum) * factor);
  }
}

// The columns of the vocabulary that a part of the logits has.
struct Columns {
  int64_t first;
  int count;  // without padding
  int width;  // with it

  __device__ bool has(int64_t label) const { return label >= first && label < first + count; }
};

// One block per row. Reads the logits once.
template <class T>
__global__ void __launch_bounds__(kThreads)
    part_kernel(float* statistics, T* logits, const int32_t* labels, const Columns columns) {
  const Row<T> row(logits + static_cast<int64_t>(blockIdx.x) * columns.width, columns.count);
  const OnlineSum online = row.online_sum();
  const float largest = block_max(online.largest);
  const float sum = block_sum(online.sum * exponential<T>(online.largest - largest));
  if (threadIdx.x != 0) return;
  const int64_t label = labels[blockIdx.x];
  float* to = statistics + static_cast<int64_t>(blockIdx.x) * 3;
  to[0] = columns.count > 0 ? largest : -INFINITY;
  to[1] = sum;
  to[2] = columns.has(label) ? to_float(row.begin[label - columns.first]) : 0.0f;
}

// One block per row, all of whose threads join the parts. Reads the logits and writes the gradient
// over them, or does neither.
template <class T>
__global__ void __launch_bounds__(kThreads)
    join_kernel(float* token_loss, T* logits, const float* statistics, int64_t parts,
                const int32_t* labels, const float* mask, const Columns columns,
                bool with_gradient) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * 3;
  const float* of_row = statistics + static_cast<int64_t>(blockIdx.x) * 3;
  float largest = -INFINITY, sum = 0, at_label = 0;
  for (int64_t part = 0; part < parts; ++part) largest = fmaxf(largest, of_row[part * stride]);
  for (int64_t part = 0; part < parts; ++part) {
    const float* from = of_row + part * stride;
    sum += from[1] * expf(from[0] - largest);
    at_label += from[2];
  }
  const float weight = mask[blockIdx.x];
  if (threadIdx.x == 0) token_loss[blockIdx.x] = weight * (largest + logf(sum) - at_label);
  if (!with_gradient) return;

  const Row<T> row(logits + static_cast<int64_t>(blockIdx.x) * columns.width, columns.count);
  const float factor = weight / sum;
  row.write_softmax(largest, factor);
  for (int i = columns.count + static_cast<int>(threadIdx.x); i < columns.width; i += kThreads) {
    row.begin[i] = from_float<T>(0.0f);
  }
  __syncthreads();  // the label's element is written last
  const int64_t label = labels[blockIdx.x];
  if (threadIdx.x == 0 && columns.has(label)) {
    row.begin[label - columns.first] =
        from_float<T>((exponential<T>(at_label - largest) - sum) * factor);
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

void add_losses(Stream& stream, const Tensor& loss_sum, const Tensor& token_loss) {
  sum_kernel<<<1, 1024, 0, cuda_handle(stream)>>>(loss_sum.data<float>(), token_loss.data<float>(),
                                                  token_loss.dim(0));
  CUDA_CHECK(cudaGetLastError());
}

Columns columns_of(const Tensor& logits, int64_t first_column, int64_t num_columns) {
  CHECK(logits.dim(1) <= INT32_MAX / 2, "a part of a vocabulary of ", logits.dim(1));
  return {first_column, static_cast<int>(num_columns), static_cast<int>(logits.dim(1))};
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
  add_losses(stream, loss_sum, token_loss);
}

void cross_entropy_part(Stream& stream, const Tensor& statistics, const Tensor& logits,
                        const Tensor& labels, int64_t first_column, int64_t num_columns) {
  const int64_t rows = logits.dim(0);
  if (rows == 0) return;
  const Columns columns = columns_of(logits, first_column, num_columns);
  dispatch_device_float("cross_entropy", logits.dtype(), [&]<class T>() {
    part_kernel<T><<<grid_size(rows), kThreads, 0, cuda_handle(stream)>>>(
        statistics.data<float>(), device_data<T>(logits), labels.data<int32_t>(), columns);
    CUDA_CHECK(cudaGetLastError());
  });
}

void cross_entropy_join(Stream& stream, const Tensor& token_loss, const Tensor& loss_sum,
                        const Tensor& logits, const Tensor& statistics, const Tensor& labels,
                        const Tensor& mask, int64_t first_column, int64_t num_columns,
                        bool with_gradient) {
  const int64_t rows = logits.dim(0);
  if (rows == 0) return;
  const Columns columns = columns_of(logits, first_column, num_columns);
  dispatch_device_float("cross_entropy", logits.dtype(), [&]<class T>() {
    join_kernel<T><<<grid_size(rows), kThreads, 0, cuda_handle(stream)>>>(
        token_loss.data<float>(), device_data<T>(logits), statistics.data<float>(),
        statistics.dim(0), labels.data<int32_t>(), mask.data<float>(), columns, with_gradient);
    CUDA_CHECK(cudaGetLastError());
  });
  add_losses(stream, loss_sum, token_loss);
}

}  // namespace ferry::cuda
