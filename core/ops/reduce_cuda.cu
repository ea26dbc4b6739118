#include "core/check_cuda.h"
#include "core/ops/column_sums_cuda.h"
#include "core/ops/map_cuda.cuh"
#include "core/ops/reduce_cuda.cuh"
#include "core/ops/reduce_kernels.h"
#include "core/ops/vector_cuda.cuh"
#include "core/stream_cuda.h"

#include <algorithm>

namespace ferry::cuda {
namespace {

constexpr int kThreads = 256;

// Block b leaves the sum of its elements in partial[b]. Four vectors in flight per thread; products
// and sums in double, which keeps pace with memory. Reads x once.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    sum_squares_kernel(double* partial, const T* x, int64_t num_vectors, int64_t num_elements) {
  constexpr int kUnroll = 4;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t num_threads = static_cast<int64_t>(gridDim.x) * kThreads;
  double sum = 0;
  for (int64_t i = thread; i < num_vectors; i += kUnroll * num_threads) {
    float v[kUnroll][kWidth] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * num_threads < num_vectors) {
        load<kWidth>(x + (i + u * num_threads) * kWidth, v[u]);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        sum += static_cast<double>(v[u][j]) * static_cast<double>(v[u][j]);
      }
    }
  }
  for (int64_t i = num_vectors * kWidth + thread; i < num_elements; i += num_threads) {
    const double v = to_float(x[i]);
    sum += v * v;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// One block: total += (sum of partial) / divisor.
template <class Total>
__global__ void __launch_bounds__(kThreads)
    add_partial_kernel(Total* total, const double* partial, int num_partial, double divisor) {
  double sum = 0;
  for (int i = threadIdx.x; i < num_partial; i += kThreads) sum += partial[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    total[0] = static_cast<Total>(static_cast<double>(total[0]) + sum / divisor);
  }
}

template <class Total>
void add_sum_squares(Stream& stream, const char* op, Total* total, const Tensor& x,
                     double divisor) {
  const int64_t num_elements = x.numel();
  if (num_elements == 0) return;
  const cudaStream_t handle = cuda_handle(stream);
  dispatch_device_float(op, x.dtype(), [&]<class T>() {
    const T* in = device_data<T>(x);
    // Where the tensor begins at an odd address, single elements.
    const int64_t num_vectors = aligned16(in) ? num_elements / kVector<T> : 0;
    const int64_t items = std::max<int64_t>(num_vectors, num_elements - num_vectors * kVector<T>);
    const int64_t blocks = std::min<int64_t>(ceil_div(items, kThreads), 2 * kPartialRows);
    const Tensor partial = Tensor::empty(stream, "workspace: sum_squares", {blocks}, DType::F64);
    sum_squares_kernel<T, kVector<T>><<<grid_size(blocks), kThreads, 0, handle>>>(
        partial.data<double>(), in, num_vectors, num_elements);
    CUDA_CHECK(cudaGetLastError());
    add_partial_kernel<<<1, kThreads, 0, handle>>>(total, partial.data<double>(),
                                                   static_cast<int>(blocks), divisor);
    CUDA_CHECK(cudaGetLastError());
  });
}

// A block sums 32 neighbouring columns of a range of rows: warp w takes rows w, w+32, ... of the
// range, lane l column l, then warp 0 adds the warps in order. Reads x once, 128 bytes per warp
// and 16 rows in flight: the 528 rows that norms leave are two round trips to memory.
// blockIdx.y is the range; range r goes to row r of `sums`.
__global__ void __launch_bounds__(1024)
    sum_columns_kernel(float* sums, const float* x, int64_t num_rows, int64_t rows_per_range,
                       int64_t columns, int64_t stride, bool add) {
  __shared__ float of_warp[32][33];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  const int64_t begin = blockIdx.y * rows_per_range;
  const int64_t end = begin + rows_per_range < num_rows ? begin + rows_per_range : num_rows;
  constexpr int kUnroll = 16;
  float sum = 0;
  if (column < columns) {
    for (int64_t row = begin + warp; row < end; row += kUnroll * 32) {
      float v[kUnroll] = {};
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (row + u * 32 < end) v[u] = x[(row + u * 32) * stride + column];
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) sum += v[u];
    }
  }
  of_warp[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
  sum = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) sum += of_warp[i][lane];
  float* to = sums + blockIdx.y * columns + column;
  *to = add ? *to + sum : sum;
}

void launch_sum_columns(Stream& stream, float* sums, const float* x, int64_t rows,
                        int64_t rows_per_range, int64_t columns, int64_t stride, bool add) {
  const int64_t ranges = std::max<int64_t>(ceil_div(rows, rows_per_range), 1);
  const dim3 grid(grid_size(ceil_div(columns, 32)), static_cast<unsigned>(ranges));
  sum_columns_kernel<<<grid, 1024, 0, cuda_handle(stream)>>>(sums, x, rows, rows_per_range, columns,
                                                             stride, add);
  CUDA_CHECK(cudaGetLastError());
}

struct AccumulateCounts {
  int64_t* totals;
  const int32_t* values;
  template <int N>
  __device__ void apply(int64_t i) const {
#pragma unroll
    for (int j = 0; j < N; ++j) totals[i + j] += values[i + j];
  }
};

}  // namespace

void sum_columns(Stream& stream, float* sums, const float* x, int64_t rows, int64_t columns,
                 int64_t stride, bool add) {
  if (columns == 0) return;
  // Up to 1024 rows one launch is short enough; above, ranges of at least 512 rows, at most 256.
  if (rows <= 1024) return launch_sum_columns(stream, sums, x, rows, 1024, columns, stride, add);
  const int64_t rows_per_range = std::max<int64_t>(512, ceil_div(rows, 256));
  const int64_t ranges = ceil_div(rows, rows_per_range);
  const Tensor partial =
      Tensor::empty(stream, "workspace: column_sums", {ranges, columns}, DType::F32);
  launch_sum_columns(stream, partial.data<float>(), x, rows, rows_per_range, columns, stride,
                     false);
  launch_sum_columns(stream, sums, partial.data<float>(), ranges, 1024, columns, columns, add);
}

void sum_squares(Stream& stream, const Tensor& total, const Tensor& x) {
  add_sum_squares(stream, "sum_squares", total.data<double>(), x, 1.0);
}

void mean_square(Stream& stream, const Tensor& total, const Tensor& x, double divisor) {
  require_f32("mean_square", total.dtype());
  add_sum_squares(stream, "mean_square", total.data<float>(), x, divisor);
}

void column_sums(Stream& stream, const Tensor& sums, const Tensor& x) {
  require_f32("column_sums", x.dtype());
  sum_columns(stream, sums.data<float>(), x.data<float>(), x.dim(0), x.dim(1), x.dim(1), false);
}

void accumulate_counts(Stream& stream, const Tensor& totals, const Tensor& values) {
  launch_map<1>(stream, totals.numel(), false,
                AccumulateCounts{totals.data<int64_t>(), values.data<int32_t>()});
}

}  // namespace ferry::cuda
