#include "core/check_cuda.h"
#include "core/ops/embedding_kernels.h"
#include "core/ops/vector_cuda.cuh"
#include "core/stream_cuda.h"

#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

namespace ferry::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// The tokens whose rows are here: [first, first + rows).
struct Part {
  int64_t first;
  int64_t rows;
  __device__ bool has(int64_t token) const { return token >= first && token < first + rows; }
};

// One warp per token, four words in flight per lane. Reads a row of the table and writes it, or
// writes zeros.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(Word* y, const Word* table, const int32_t* tokens, int64_t num_tokens,
                   int64_t row_words, const Part part) {
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

__global__ void __launch_bounds__(kThreads) positions_kernel(int32_t* positions, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) positions[i] = static_cast<int32_t>(i);
}

// One warp per sorted position and 32 vectors of columns (blockIdx.y). The warp of the first
// position of each run of equal tokens adds the rows of the run to the row of dweight, in order;
// the other warps, and those of tokens that are not here, have nothing to do. Reads dy once, reads
// and writes each row of dweight that has tokens once; eight rows in flight.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(float* dweight, const T* dy, const int32_t* sorted_tokens,
                    const int32_t* positions, int64_t num_tokens, int64_t columns,
                    const Part part) {
  constexpr int kUnroll = 8;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x % 32) * kWidth;
  if (begin >= num_tokens || c >= columns) return;
  const int32_t token = sorted_tokens[begin];
  if (!part.has(token) || (begin > 0 && sorted_tokens[begin - 1] == token)) return;

  float* to = dweight + (token - part.first) * columns + c;
  float sum[kWidth];
  load<kWidth>(to, sum);
  bool more = true;
  for (int64_t first = begin; more; first += kUnroll) {
    float rows[kUnroll][kWidth];
    bool mine[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      mine[i] = first + i < num_tokens && sorted_tokens[first + i] == token;
      if (mine[i]) load<kWidth>(dy + positions[first + i] * columns + c, rows[i]);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (!mine[i]) continue;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum[j] += rows[i][j];
    }
    more = mine[kUnroll - 1];  // a run is contiguous
  }
  store<kWidth>(to, sum);
}

// Tokens and their positions, sorted by token; equal tokens stay in order of position.
struct SortedTokens {
  Tensor tokens;
  Tensor positions;
};

SortedTokens sort_tokens(Stream& stream, const Tensor& tokens, int64_t vocab) {
  const int64_t n = tokens.numel();
  CHECK(n <= INT32_MAX, n, " tokens in one call");
  const cudaStream_t handle = cuda_handle(stream);
  const auto scratch = [&](int64_t bytes, DType dtype) {
    return Tensor::empty(stream, "workspace: embedding", {bytes}, dtype);
  };
  const SortedTokens sorted{scratch(n, DType::I32), scratch(n, DType::I32)};
  const Tensor unsorted_positions = scratch(n, DType::I32);
  positions_kernel<<<grid_size(ceil_div(n, kThreads)), kThreads, 0, handle>>>(
      unsorted_positions.data<int32_t>(), n);
  CUDA_CHECK(cudaGetLastError());

  // Tokens are not negative, so that their low bits are the whole key. The first call only says how
  // much scratch memory the second needs.
  const int end_bit = std::max<int>(1, std::bit_width(static_cast<uint64_t>(vocab)));
  const auto* keys = reinterpret_cast<const uint32_t*>(tokens.data<int32_t>());
  auto* sorted_keys = reinterpret_cast<uint32_t*>(sorted.tokens.data<int32_t>());
  Tensor workspace;
  size_t bytes = 0;
  const auto sort = [&](void* memory) {
    CUDA_CHECK(cub::DeviceRadixSort::SortPairs(
        memory, bytes, keys, sorted_keys, unsorted_positions.data<int32_t>(),
        sorted.positions.data<int32_t>(), static_cast<int>(n), 0, end_bit, handle));
  };
  sort(nullptr);
  workspace = scratch(static_cast<int64_t>(std::max<size_t>(bytes, 1)), DType::U8);
  sort(workspace.raw());
  return sorted;
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
    const Part part{rows.first_row, weight.dim(0)};
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
  const int64_t num_tokens = tokens.numel(), columns = dy.dim(1);
  if (dy.numel() == 0) return;
  dispatch_device_float("embedding", dy.dtype(), [&]<class T>() {
    const SortedTokens sorted = sort_tokens(stream, tokens, rows.vocab);
    float* to = dweight.data<float>();
    const T* from = device_data<T>(dy);
    const bool vectors = columns % kVector<T> == 0 && aligned16(to, from);
    const auto kernel = vectors ? backward_kernel<T, kVector<T>> : backward_kernel<T, 1>;
    const int64_t chunks = ceil_div(columns, 32 * (vectors ? kVector<T> : 1));
    CHECK(chunks <= 65535, "embedding rows of ", columns, " elements");
    const dim3 grid(grid_size(ceil_div(num_tokens, kWarps)), static_cast<unsigned>(chunks));
    kernel<<<grid, kThreads, 0, cuda_handle(stream)>>>(
        to, from, sorted.tokens.data<int32_t>(), sorted.positions.data<int32_t>(), num_tokens,
        columns, Part{rows.first_row, dweight.dim(0)});
    CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace ferry::cuda
