#include "core/check_cuda.h"
#include "core/ops/map_cuda.cuh"
#include "core/ops/permute_kernels.h"
#include "core/ops/reduce_cuda.cuh"
#include "core/ops/vector_cuda.cuh"
#include "core/stream_cuda.h"

#include <algorithm>

namespace ferry::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxExperts = 1024;  // kWarps counters of each fit into 48 KB of shared memory

// The plan is a counting sort in three launches: a block counts the experts of its slots; a warp
// per expert turns the counts of the blocks into first rows; a block places its slots. Every warp
// has kRounds * 32 consecutive slots, and every block those of its warps.
constexpr int kRounds = 4;
constexpr int kSlotsPerWarp = kRounds * 32;
constexpr int kSlotsPerBlock = kWarps * kSlotsPerWarp;

// block_counts[e][b]: the slots of block b with expert e. Sums of integers do not depend on the
// order of the atomic additions.
__global__ void __launch_bounds__(kThreads)
    count_kernel(int32_t* block_counts, const int32_t* experts, int64_t num_slots,
                 int num_experts) {
  extern __shared__ int32_t count[];  // [num_experts]
  for (int e = threadIdx.x; e < num_experts; e += kThreads) count[e] = 0;
  __syncthreads();
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kSlotsPerBlock;
  int32_t expert[kRounds];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int64_t slot = begin + round * kThreads + threadIdx.x;
    expert[round] = slot < num_slots ? experts[slot] : -1;
  }
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    if (expert[round] >= 0) atomicAdd(&count[expert[round]], 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < num_experts; e += kThreads) {
    block_counts[static_cast<int64_t>(e) * gridDim.x + blockIdx.x] = count[e];
  }
}

// One warp per expert: the counts of its blocks become exclusive sums, in place; counts[e] is the
// total.
__global__ void __launch_bounds__(kThreads)
    scan_kernel(int32_t* block_counts, int32_t* counts, int num_blocks, int num_experts) {
  const int expert = blockIdx.x * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (expert >= num_experts) return;
  int32_t* of_block = block_counts + static_cast<int64_t>(expert) * num_blocks;
  int32_t before = 0;
  for (int first = 0; first < num_blocks; first += 32) {
    const int block = first + lane;
    const int32_t count = block < num_blocks ? of_block[block] : 0;
    const int32_t up_to_here = warp_prefix_sum(count);
    if (block < num_blocks) of_block[block] = before + up_to_here - count;
    before += __shfl_sync(kAllLanes, up_to_here, 31);
  }
  if (lane == 0) counts[expert] = before;
}

// Gives each slot its row. `blocks_before`[e][b]: the slots with expert e in blocks before b. Block
// 0 also writes the offsets.
__global__ void __launch_bounds__(kThreads)
    place_kernel(int32_t* row_of_slot, int32_t* slot_of_row, int32_t* offsets,
                 const int32_t* experts, const int32_t* counts, const int32_t* blocks_before,
                 int64_t num_slots, int num_experts) {
  extern __shared__ int32_t shared[];
  int32_t* next = shared;                           // [kWarps][num_experts]
  int32_t* offset = shared + kWarps * num_experts;  // [num_experts]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = threadIdx.x; i < kWarps * num_experts; i += kThreads) next[i] = 0;
  if (warp == 0) {
    int32_t before = 0;
    for (int first = 0; first < num_experts; first += 32) {
      const int e = first + lane;
      const int32_t count = e < num_experts ? counts[e] : 0;
      const int32_t up_to_here = warp_prefix_sum(count);
      if (e < num_experts) offset[e] = before + up_to_here - count;
      before += __shfl_sync(kAllLanes, up_to_here, 31);
    }
    if (blockIdx.x == 0 && lane == 0) offsets[num_experts] = before;
  }
  __syncthreads();

  // How many slots of each warp chose each expert, and from that the row of the first of them.
  const int64_t begin =
      static_cast<int64_t>(blockIdx.x) * kSlotsPerBlock + warp * kSlotsPerWarp + lane;
  int32_t* mine = next + warp * num_experts;
  int32_t expert[kRounds];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int64_t slot = begin + round * 32;
    expert[round] = slot < num_slots ? experts[slot] : -1;
    if (expert[round] >= 0) atomicAdd(&mine[expert[round]], 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < num_experts; e += kThreads) {
    if (blockIdx.x == 0) offsets[e] = offset[e];
    int32_t row = offset[e] + blocks_before[static_cast<int64_t>(e) * gridDim.x + blockIdx.x];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const int32_t count = next[w * num_experts + e];
      next[w * num_experts + e] = row;
      row += count;
    }
  }
  __syncthreads();

  // A warp takes 32 consecutive slots at a time; lanes with the same expert are in slot order.
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int64_t slot = begin + round * 32;
    const unsigned peers = __match_any_sync(kAllLanes, expert[round]);
    const int rank = __popc(peers & ((1u << lane) - 1));
    if (expert[round] >= 0) {
      const int32_t row = mine[expert[round]] + rank;
      row_of_slot[slot] = row;
      slot_of_row[row] = static_cast<int32_t>(slot);
    }
    __syncwarp();
    if (expert[round] >= 0 && rank == 0) mine[expert[round]] += __popc(peers);
    __syncwarp();
  }
}

// One warp per token, four words in flight per lane: reads x once and writes it to the token's k
// rows.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    permute_kernel(Word* rows, const Word* x, const int32_t* row_of_slot, int64_t num_tokens,
                   int top_k, int64_t row_words) {
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
                   int64_t num_tokens, int top_k, int64_t columns) {
  constexpr int kUnroll = 4;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (token >= num_tokens) return;
  const int32_t* my_rows = row_of_slot + token * top_k;
  for (int64_t c = threadIdx.x % 32 * kWidth; c < columns; c += 32 * kWidth) {
    float sum[kWidth] = {};
    if (residual != nullptr) load<kWidth>(residual + token * columns + c, sum);
    for (int first = 0; first < top_k; first += kUnroll) {
      float v[kUnroll][kWidth];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (first + u < top_k) load<kWidth>(rows + my_rows[first + u] * columns + c, v[u]);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (first + u >= top_k) continue;
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
  template <int N>
  __device__ void apply(int64_t i) const {
#pragma unroll
    for (int j = 0; j < N; ++j) out[i + j] = in[index[i + j]];
  }
};

}  // namespace

void make_routing_plan(Stream& stream, const RoutingPlan& plan, const Tensor& experts) {
  const int64_t num_slots = experts.numel(), num_experts = plan.counts.dim(0);
  if (num_experts > kMaxExperts) {
    fail(ExitCode::Usage, "routing on a GPU takes at most ", kMaxExperts, " experts, not ",
         num_experts, ": choose fewer moe.experts, or run.backend=cpu");
  }
  CHECK(num_experts >= 1 && num_slots <= INT32_MAX, num_slots, " slots, ", num_experts, " experts");
  const int e = static_cast<int>(num_experts);
  // Without slots one block still writes counts and offsets.
  const int64_t blocks = std::max<int64_t>(ceil_div(num_slots, kSlotsPerBlock), 1);
  const Tensor block_counts =
      Tensor::empty(stream, "workspace: routing plan", {num_experts, blocks}, DType::I32);
  int32_t* of_block = block_counts.data<int32_t>();
  const int32_t* chosen = experts.data<int32_t>();
  const cudaStream_t handle = cuda_handle(stream);

  count_kernel<<<grid_size(blocks), kThreads, e * sizeof(int32_t), handle>>>(of_block, chosen,
                                                                             num_slots, e);
  CUDA_CHECK(cudaGetLastError());
  scan_kernel<<<grid_size(ceil_div(e, kWarps)), kThreads, 0, handle>>>(
      of_block, plan.counts.data<int32_t>(), static_cast<int>(blocks), e);
  CUDA_CHECK(cudaGetLastError());
  place_kernel<<<grid_size(blocks), kThreads, (kWarps + 1) * e * sizeof(int32_t), handle>>>(
      plan.row_of_slot.data<int32_t>(), plan.slot_of_row.data<int32_t>(),
      plan.offsets.data<int32_t>(), chosen, plan.counts.data<int32_t>(), of_block, num_slots, e);
  CUDA_CHECK(cudaGetLastError());
}

void permute_rows(Stream& stream, const Tensor& rows, const Tensor& x, const RoutingPlan& plan) {
  if (rows.numel() == 0) return;
  const int64_t num_tokens = x.dim(0), columns = x.dim(1);
  const int top_k = static_cast<int>(rows.dim(0) / num_tokens);
  dispatch_device_float("permute_rows", x.dtype(), [&]<class T>() {
    T* to = device_data<T>(rows);
    const T* from = device_data<T>(x);
    const int32_t* row_of_slot = plan.row_of_slot.data<int32_t>();
    const unsigned blocks = grid_size(ceil_div(num_tokens, kWarps));
    const cudaStream_t handle = cuda_handle(stream);
    if (columns % kVector<T> == 0 && aligned16(to, from)) {
      permute_kernel<<<blocks, kThreads, 0, handle>>>(
          reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(from), row_of_slot,
          num_tokens, top_k, columns / kVector<T>);
    } else {
      permute_kernel<<<blocks, kThreads, 0, handle>>>(to, from, row_of_slot, num_tokens, top_k,
                                                      columns);
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
        to, from, before, plan.row_of_slot.data<int32_t>(), num_tokens,
        static_cast<int>(rows.dim(0) / num_tokens), columns);
    CUDA_CHECK(cudaGetLastError());
  });
}

void gather_scalars(Stream& stream, const Tensor& out, const Tensor& in, const Tensor& index) {
  require_f32("gather_scalars", in.dtype());
  launch_map<1>(stream, out.numel(), false,
                GatherScalars{out.data<float>(), in.data<float>(), index.data<int32_t>()});
}

}  // namespace ferry::cuda
