#include "core/check_cuda.h"
#include "core/ops/map_cuda.cuh"
#include "core/ops/packed_cuda.cuh"
#include "core/ops/permute_kernels.h"
#include "core/ops/reduce_cuda.cuh"
#include "core/ops/vector_cuda.cuh"
#include "core/stream_cuda.h"

namespace ferry::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// One warp per token, eight words in flight per lane: reads x once and writes it to those of the
// token's k rows that are there. Lane j of the warp keeps the row of choice j, of 32 at a time.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    permute_kernel(Word* rows, const Word* x, const int32_t* row_of_slot, int64_t num_tokens,
                   int64_t num_rows, int top_k, int64_t row_words) {
  constexpr int kUnroll = 8;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (token >= num_tokens) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Word* from = x + token * row_words;
  for (int first_choice = 0; first_choice < top_k; first_choice += 32) {
    const int choices = min(top_k - first_choice, 32);
    const int32_t my_row = lane < choices ? row_of_slot[token * top_k + first_choice + lane] : 0;
    // The loop is the same for all lanes, because they exchange rows.
    for (int64_t begin = 0; begin < row_words; begin += kUnroll * 32) {
      const int64_t first = begin + lane;
      Word words[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        if (first + i * 32 < row_words) words[i] = from[first + i * 32];
      }
      for (int j = 0; j < choices; ++j) {
        const int32_t row = __shfl_sync(kAllLanes, my_row, j);
        if (row >= num_rows) continue;
        Word* to = rows + row * row_words;
#pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
          if (first + i * 32 < row_words) to[first + i * 32] = words[i];
        }
      }
    }
  }
}

// One warp per row: reads its token's words and writes them.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(Word* rows, const Word* x, const int32_t* slot_of_row, int64_t num_rows,
                  int64_t top_k, int64_t row_words) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= num_rows) return;
  const Word* from = x + slot_of_row[row] / top_k * row_words;
#pragma unroll 4
  for (int64_t i = threadIdx.x % 32; i < row_words; i += 32) rows[row * row_words + i] = from[i];
}

// y[token] = residual + the token's rows, added in the order of choices; one warp per token. Reads
// rows (and residual) once, writes y once. This kernel is for any number of choices and any width,
// with four rows in flight.
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

// The same for 16-byte vectors and at most kChoices: the token's rows are looked up once, then
// eight vectors per lane are in flight, of all choices and, where these are few, of several places
// in the row. -1: a row that is not there.
template <class T, int kChoices>
__global__ void __launch_bounds__(kThreads)
    combine_vectors_kernel(T* y, const T* rows, const T* residual, const int32_t* row_of_slot,
                           int64_t num_tokens, int64_t num_rows, int top_k, int64_t columns) {
  constexpr int kWidth = kVector<T>, kPlaces = 8 / kChoices;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (token >= num_tokens) return;
  int32_t row[kChoices];
#pragma unroll
  for (int j = 0; j < kChoices; ++j) row[j] = j < top_k ? row_of_slot[token * top_k + j] : -1;
#pragma unroll
  for (int j = 0; j < kChoices; ++j) row[j] = row[j] < num_rows ? row[j] : -1;
  const int64_t stride = 32 * kWidth;
  for (int64_t c = threadIdx.x % 32 * kWidth; c < columns; c += kPlaces * stride) {
    uint4 v[kPlaces][kChoices], before[kPlaces] = {};
#pragma unroll
    for (int p = 0; p < kPlaces; ++p) {
      const int64_t at = c + p * stride;
      if (at >= columns) continue;
#pragma unroll
      for (int j = 0; j < kChoices; ++j) {
        if (row[j] >= 0) v[p][j] = load_once(rows + row[j] * columns + at);
      }
      if (residual != nullptr) before[p] = load_once(residual + token * columns + at);
    }
#pragma unroll
    for (int p = 0; p < kPlaces; ++p) {
      const int64_t at = c + p * stride;
      if (at >= columns) continue;
      float sum[kWidth];
      unpack(before[p], sum);
#pragma unroll
      for (int j = 0; j < kChoices; ++j) {
        if (row[j] < 0) continue;
        float x[kWidth];
        unpack(v[p][j], x);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sum[i] += x[i];
      }
      store_packed(y + token * columns + at, pack(sum));
    }
  }
}

template <class T>
auto combine_kernel_for(bool vectors, int top_k) {
  if (!vectors) return combine_kernel<T, 1>;
  if (top_k > 8) return combine_kernel<T, kVector<T>>;
  if (top_k > 4) return combine_vectors_kernel<T, 8>;
  if (top_k > 2) return combine_vectors_kernel<T, 4>;
  return top_k == 2 ? combine_vectors_kernel<T, 2> : combine_vectors_kernel<T, 1>;
}

struct GatherScalars {
  float* out;
  const float* in;
  const int32_t* index;
  int64_t num_in;
  template <int N>
  __device__ void apply(int64_t i) const {
    static_assert(N == 1);
    const int32_t at = index[i];
    out[i] = at < num_in ? in[at] : 0.0f;
  }
};

// Rows are copied as they lie in memory, whatever their dtype: in the widest words that a row has a
// whole number of. body(to, from, words of a row).
template <class Body>
void dispatch_words(const Tensor& to, const Tensor& from, Body&& body) {
  const int64_t row_bytes = from.dim(1) * static_cast<int64_t>(size_of(from.dtype()));
  const auto with = [&]<class Word>() {
    body(static_cast<Word*>(to.raw()), static_cast<const Word*>(from.raw()),
         row_bytes / static_cast<int64_t>(sizeof(Word)));
  };
  const uintptr_t places = reinterpret_cast<uintptr_t>(to.raw()) |
                           reinterpret_cast<uintptr_t>(from.raw()) |
                           static_cast<uintptr_t>(row_bytes);
  if (places % 16 == 0) return with.template operator()<uint4>();
  if (places % 4 == 0) return with.template operator()<uint32_t>();
  if (places % 2 == 0) return with.template operator()<uint16_t>();
  with.template operator()<uint8_t>();
}

}  // namespace

void permute_rows(Stream& stream, const Tensor& rows, const Tensor& x, const RoutingPlan& plan) {
  if (rows.numel() == 0) return;
  const int64_t num_tokens = x.dim(0);
  const int top_k = static_cast<int>(plan.row_of_slot.dim(0) / num_tokens);
  dispatch_words(rows, x, [&]<class Word>(Word* to, const Word* from, int64_t row_words) {
    permute_kernel<<<grid_size(ceil_div(num_tokens, kWarps)), kThreads, 0, cuda_handle(stream)>>>(
        to, from, plan.row_of_slot.data<int32_t>(), num_tokens, rows.dim(0), top_k, row_words);
    CUDA_CHECK(cudaGetLastError());
  });
}

void gather_rows(Stream& stream, const Tensor& rows, const Tensor& x, const Tensor& slot_of_row,
                 int64_t top_k) {
  if (rows.numel() == 0) return;
  const int64_t num_rows = rows.dim(0);
  dispatch_words(rows, x, [&]<class Word>(Word* to, const Word* from, int64_t row_words) {
    gather_kernel<<<grid_size(ceil_div(num_rows, kWarps)), kThreads, 0, cuda_handle(stream)>>>(
        to, from, slot_of_row.data<int32_t>(), num_rows, top_k, row_words);
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
    const int top_k = static_cast<int>(plan.row_of_slot.dim(0) / num_tokens);
    const auto kernel = combine_kernel_for<T>(vectors, top_k);
    kernel<<<grid_size(ceil_div(num_tokens, kWarps)), kThreads, 0, cuda_handle(stream)>>>(
        to, from, before, plan.row_of_slot.data<int32_t>(), num_tokens, rows.dim(0), top_k,
        columns);
    CUDA_CHECK(cudaGetLastError());
  });
}

void gather_scalars(Stream& stream, const Tensor& out, const Tensor& in, const Tensor& index) {
  require_f32("gather_scalars", in.dtype());
  launch_map<1>(
      stream, out.numel(), false,
      GatherScalars{out.data<float>(), in.data<float>(), index.data<int32_t>(), in.numel()});
}

}  // namespace ferry::cuda
