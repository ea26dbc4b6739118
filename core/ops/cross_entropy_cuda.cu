#include "core/check_cuda.h"
#include "core/ops/cross_entropy_kernels.h"
#include "core/ops/packed_cuda.cuh"
#include "core/ops/reduce_cuda.cuh"
#include "core/ops/vector_cuda.cuh"
#include "core/stream_cuda.h"

#include <cmath>
#include <numbers>

namespace ferry::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocks = 2;  // of a multiprocessor at a time: 64 registers for a thread
constexpr int kUnroll = 4;

// Never part of an FMA, which would not round it: so it is the same wherever it is made.
__device__ inline float rounded_product(float a, float b) { return __fmul_rn(a, b); }

// exp(x - largest), up to a factor near 1 that is the same for all x: that of `largest` itself,
// which x = largest gives. A float's is exact. That of bf16 logits, which carry fewer digits, is
// 2^(x log2(e) - largest log2(e)), an FMA and one more instruction; its factor comes from the
// rounding of the last product. Only this struct knows of base 2.
template <class T>
struct Exponential {
  static constexpr bool kBase2 = sizeof(T) == 2;
  static constexpr float kScale = kBase2 ? std::numbers::log2e_v<float> : 1.0f;

  float offset;

  __device__ explicit Exponential(float largest) : offset(rounded_product(kScale, largest)) {}

  __device__ float operator()(float x) const { return power(fmaf(x, kScale, -offset)); }

  // A sum of exponentials `before`, times this, is one of these.
  __device__ float change_from(const Exponential& before) const {
    return power(before.offset - offset);
  }

  __device__ static float power(float exponent) {
    if constexpr (!kBase2) return expf(exponent);
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(exponent));
    return y;
  }
};

// Below all logits. Finite, so that no infinity is subtracted from another; a power of 2, so that
// its offset is exact.
constexpr float kLowest = -0x1p126f;

// The largest of the logits so far and the sum of their exponentials.
template <class T>
struct OnlineSum {
  float largest = kLowest;
  float sum = 0;

  // For logits up to x, whose exponentials may then be added to the sum.
  __device__ Exponential<T> raise(float x) {
    const Exponential<T> before(largest);
    largest = fmaxf(largest, x);
    const Exponential<T> exponential(largest);
    sum *= exponential.change_from(before);
    return exponential;
  }
};

// NaNs are ignored.
template <class T, int N>
__device__ inline float largest_of(const uint4 (&vectors)[N]) {
  if constexpr (sizeof(T) == 2) {
    const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(vectors);
    __nv_bfloat162 largest = pairs[0];
#pragma unroll
    for (int i = 1; i < 4 * N; ++i) largest = __hmax2(largest, pairs[i]);
    return fmaxf(__low2float(largest), __high2float(largest));
  } else {
    const auto* values = reinterpret_cast<const float*>(vectors);
    float largest = values[0];
#pragma unroll
    for (int i = 1; i < 4 * N; ++i) largest = fmaxf(largest, values[i]);
    return largest;
  }
}

// Of a row: the largest logit and the sum of exp(logit - largest).
struct SoftmaxSum {
  float largest;
  float sum;
};

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

  __device__ uint4* vector_at(int idx) const {
    return reinterpret_cast<uint4*>(begin + head) + idx;
  }

  // Whether this thread is the one that reads and writes a column; -1 is no thread's.
  __device__ bool owns(int column) const {
    const int idx = (column - head) / kWidth;
    return column == single ||
           (column >= head && idx < num_vectors && idx % kThreads == static_cast<int>(threadIdx.x));
  }

  // Calls body(first, vectors) with this thread's vectors first, first + kThreads, ..., kUnroll of
  // which are read at a time, as they lie in memory. Those beyond the row are of -infinity.
  template <class Body>
  __device__ void for_each_group(const Body& body) const {
    constexpr unsigned kWord = sizeof(T) == 2 ? 0xff80ff80u : 0xff800000u;
    for (int first = static_cast<int>(threadIdx.x); first < num_vectors;
         first += kUnroll * kThreads) {
      uint4 vectors[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int idx = first + u * kThreads;
        vectors[u] = idx < num_vectors ? *vector_at(idx) : make_uint4(kWord, kWord, kWord, kWord);
      }
      body(first, vectors);
    }
  }

  // Of this thread's logits.
  __device__ OnlineSum<T> online_sum() const {
    OnlineSum<T> online;
    for_each_group([&](int, const uint4(&vectors)[kUnroll]) {
      const Exponential<T> exponential = online.raise(largest_of<T>(vectors));
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        float x[kWidth];
        unpack(vectors[u], x);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) online.sum += exponential(x[j]);
      }
    });
    if (single < count) {
      const float x = to_float(begin[single]);
      online.sum += online.raise(x)(x);
    }
    return online;
  }

  // Every thread gets it.
  __device__ SoftmaxSum softmax_sum() const {
    const OnlineSum<T> mine = online_sum();
    const float largest = block_max(mine.largest);
    const Exponential<T> exponential(largest);
    const float sum = block_sum(mine.sum * exponential.change_from(Exponential<T>(mine.largest)));
    return {largest, sum / exponential(largest)};
  }

  // Writes weight * (softmax - onehot(label)) over the logits; label -1 is not in this row. No
  // thread of this kernel reads the gradient: its vectors are the first to leave the caches.
  __device__ void write_gradient(const SoftmaxSum& softmax, float weight, int label,
                                 float at_label) const {
    const Exponential<T> exponential(softmax.largest);
    const float sum = softmax.sum * exponential(softmax.largest), factor = weight / sum;
    for_each_group([&](int first, const uint4(&vectors)[kUnroll]) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (first + u * kThreads >= num_vectors) break;
        float x[kWidth];
        unpack(vectors[u], x);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) x[j] = exponential(x[j]) * factor;
        __stcs(vector_at(first + u * kThreads), pack(x));
      }
    });
    if (single < count) {
      begin[single] = from_float<T>(exponential(to_float(begin[single])) * factor);
    }
    if (owns(label)) begin[label] = from_float<T>((exponential(at_label) - sum) * factor);
  }
};

__device__ inline float loss_of(const SoftmaxSum& softmax, float weight, float at_label) {
  return weight * (logf(softmax.sum) + (softmax.largest - at_label));
}

// One block per row. Reads the logits once for the largest and the sum, and again (from L2, where
// the row is still) to write the gradient over them.
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    row_kernel(float* token_loss, T* logits, const int32_t* labels, const float* mask, int vocab,
               bool with_gradient) {
  const Row<T> row(logits + static_cast<int64_t>(blockIdx.x) * vocab, vocab);
  const int label = labels[blockIdx.x];
  const float at_label = to_float(row.begin[label]), weight = mask[blockIdx.x];
  const SoftmaxSum softmax = row.softmax_sum();
  if (threadIdx.x == 0) token_loss[blockIdx.x] = loss_of(softmax, weight, at_label);
  if (with_gradient) row.write_gradient(softmax, weight, label, at_label);
}

// The columns of the vocabulary that a part of the logits has.
struct Columns {
  int64_t first;
  int count;  // without padding
  int width;  // with it

  // Where a label is; -1 if another part has it.
  __device__ int column_of(int64_t label) const {
    return label >= first && label < first + count ? static_cast<int>(label - first) : -1;
  }
};

// One block per row. Reads the logits once.
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    part_kernel(float* statistics, T* logits, const int32_t* labels, const Columns columns) {
  const Row<T> row(logits + static_cast<int64_t>(blockIdx.x) * columns.width, columns.count);
  const SoftmaxSum softmax = row.softmax_sum();
  if (threadIdx.x != 0) return;
  const int label = columns.column_of(labels[blockIdx.x]);
  float* to = statistics + static_cast<int64_t>(blockIdx.x) * 3;
  to[0] = columns.count > 0 ? softmax.largest : -INFINITY;
  to[1] = softmax.sum;
  to[2] = label >= 0 ? to_float(row.begin[label]) : 0.0f;
}

// One block per row, all of whose threads join the parts. Reads the logits and writes the gradient
// over them, or does neither.
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    join_kernel(float* token_loss, T* logits, const float* statistics, int64_t parts,
                const int32_t* labels, const float* mask, const Columns columns,
                bool with_gradient) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * 3;
  const float* of_row = statistics + static_cast<int64_t>(blockIdx.x) * 3;
  SoftmaxSum softmax{-INFINITY, 0};
  float at_label = 0;
  for (int64_t part = 0; part < parts; ++part) {
    softmax.largest = fmaxf(softmax.largest, of_row[part * stride]);
  }
  for (int64_t part = 0; part < parts; ++part) {
    const float* from = of_row + part * stride;
    softmax.sum += from[1] * expf(from[0] - softmax.largest);
    at_label += from[2];
  }
  const float weight = mask[blockIdx.x];
  if (threadIdx.x == 0) token_loss[blockIdx.x] = loss_of(softmax, weight, at_label);
  if (!with_gradient) return;

  const Row<T> row(logits + static_cast<int64_t>(blockIdx.x) * columns.width, columns.count);
  row.write_gradient(softmax, weight, columns.column_of(labels[blockIdx.x]), at_label);
  for (int i = columns.count + static_cast<int>(threadIdx.x); i < columns.width; i += kThreads) {
    row.begin[i] = from_float<T>(0.0f);
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
