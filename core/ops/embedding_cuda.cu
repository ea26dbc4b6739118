#include "core/check_cuda.h"
#include "core/ops/embedding_kernels.h"
#include "core/ops/embedding_runs.cuh"
#include "core/ops/vector_cuda.cuh"
#include "core/stream_cuda.h"

#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

namespace ferry::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// One warp per token, four words in flight per lane. Reads a row of the table and writes it, or
// writes zeros.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(Word* y, const Word* table, const int32_t* tokens, int64_t num_tokens,
                   int64_t row_words, const runs::Part part) {
  constexpr int kUnroll = 4;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (token >= num_tokens) return;
  const int64_t id = tokens[token];
  Word* to = y + token * row_words;
  if (!part.has(id)) {
    for (int64_t word = threadIdx.x % 32; word < row_words; word += 32) to[word] = Word{};
    return;
  }
  const Word* from = table + (id - part.first) * row_words;
  for (int64_t first = threadIdx.x % 32; first < row_words; first += kUnroll * 32) {
    Word words[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (first + i * 32 < row_words) words[i] = from[first + i * 32];
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (first + i * 32 < row_words) to[first + i * 32] = words[i];
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    place_kernel(runs::PlacedToken* placed, const int32_t* tokens, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) placed[i] = {static_cast<int32_t>(i), tokens[i]};
}

// PlacedTokens, sorted by token; equal tokens, a run, are in order of position.
Tensor sort_tokens(Stream& stream, const Tensor& tokens, int64_t vocab) {
  const int64_t n = tokens.numel();
  CHECK(n <= INT32_MAX / 2, n, " tokens in one call");
  const cudaStream_t handle = cuda_handle(stream);
  const auto scratch = [&](int64_t count, DType dtype) {
    return Tensor::empty(stream, "workspace: embedding", {count}, dtype);
  };
  const Tensor placed = scratch(n, DType::I64), sorted = scratch(n, DType::I64);
  place_kernel<<<grid_size(ceil_div(n, kThreads)), kThreads, 0, handle>>>(
      static_cast<runs::PlacedToken*>(placed.raw()), tokens.data<int32_t>(), n);
  CUDA_CHECK(cudaGetLastError());

  // Tokens are not negative, so that their low bits are the whole key; the sort is stable. The
  // first call only says how much scratch memory the second needs.
  const int num_bits = std::max<int>(1, std::bit_width(static_cast<uint64_t>(vocab)));
  Tensor workspace;
  size_t bytes = 0;
  const auto sort = [&](void* memory) {
    CUDA_CHECK(cub::DeviceRadixSort::SortKeys(
        memory, bytes, static_cast<const uint64_t*>(placed.raw()),
        static_cast<uint64_t*>(sorted.raw()), static_cast<int>(n), 32, 32 + num_bits, handle));
  };
  sort(nullptr);
  workspace = scratch(static_cast<int64_t>(std::max<size_t>(bytes, 1)), DType::U8);
  sort(workspace.raw());
  return sorted;
}

template <class Packed, class T>
void add_runs(const runs::SortedRows<T>& rows, cudaStream_t stream) {
  const int64_t vectors = rows.columns / static_cast<int64_t>(sizeof(Packed) / sizeof(T));
  const int64_t threads = std::min<int64_t>(runs::kThreads, ceil_div(vectors, 32) * 32);
  const dim3 grid(grid_size(rows.count), grid_size(ceil_div(vectors, threads)));
  runs::add_kernel<Packed><<<grid, grid_size(threads), 0, stream>>>(rows);
  CUDA_CHECK(cudaGetLastError());
}

template <class T>
void add_long_runs(const runs::SortedRows<T>& rows, cudaStream_t stream) {
  constexpr int kSharedBytes = runs::LongRun<T>::kSharedBytes;
  CUDA_CHECK(cudaFuncSetAttribute(runs::add_long_kernel<T>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const dim3 grid(grid_size(ceil_div(rows.count, runs::kLongRun)),
                  grid_size(ceil_div(rows.columns, runs::LongRun<T>::kColumns)));
  runs::add_long_kernel<<<grid, runs::kThreads, kSharedBytes, stream>>>(rows);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void embedding_forward(Stream& stream, const Tensor& y, const Tensor& weight, const Tensor& tokens,
                       const VocabularyRows& rows) {
  const int64_t num_tokens = tokens.numel();
  if (y.numel() == 0) return;
  dispatch_device_float("embedding", y.dtype(), [&]<class T>() {
    T* to = device_data<T>(y);
    const T* from = device_data<T>(weight);
    const unsigned blocks = grid_size(ceil_div(num_tokens, kWarps));
    const cudaStream_t handle = cuda_handle(stream);
    const int32_t* ids = tokens.data<int32_t>();
    const int64_t columns = y.dim(1);
    const runs::Part part{rows.first_row, weight.dim(0)};
    if (columns % kVector<T> == 0 && aligned16(to, from)) {
      forward_kernel<<<blocks, kThreads, 0, handle>>>(reinterpret_cast<uint4*>(to),
                                                      reinterpret_cast<const uint4*>(from), ids,
                                                      num_tokens, columns / kVector<T>, part);
    } else {
      forward_kernel<<<blocks, kThreads, 0, handle>>>(to, from, ids, num_tokens, columns, part);
    }
    CUDA_CHECK(cudaGetLastError());
  });
}

void embedding_backward(Stream& stream, const Tensor& dweight, const Tensor& dy,
                        const Tensor& tokens, const VocabularyRows& rows) {
  const int64_t columns = dy.dim(1);
  if (dy.numel() == 0) return;
  CHECK(columns <= 1 << 20, "embedding rows of ", columns, " elements");
  dispatch_device_float("embedding", dy.dtype(), [&]<class T>() {
    const Tensor sorted = sort_tokens(stream, tokens, rows.vocab);
    const runs::SortedRows<T> sorted_rows{dweight.data<float>(),
                                          device_data<T>(dy),
                                          static_cast<const runs::PlacedToken*>(sorted.raw()),
                                          static_cast<int>(tokens.numel()),
                                          static_cast<int>(columns),
                                          {rows.first_row, dweight.dim(0)}};
    const cudaStream_t handle = cuda_handle(stream);
    if (columns % kVector<T> == 0 && aligned16(sorted_rows.dweight, sorted_rows.dy)) {
      add_runs<uint4>(sorted_rows, handle);
      add_long_runs(sorted_rows, handle);
    } else {
      add_runs<T>(sorted_rows, handle);
    }
  });
}

}  // namespace ferry::cuda
