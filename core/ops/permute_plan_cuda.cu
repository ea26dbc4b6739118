#include <algorithm>

#include "core/check_cuda.h"
#include "core/ops/map_cuda.cuh"
#include "core/ops/permute_kernels.h"
#include "core/ops/reduce_cuda.cuh"
#include "core/ops/vector_cuda.cuh"
#include "core/stream_cuda.h"

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

// One thread per destination.
struct FindDestinations {
  int32_t* destinations;
  const int32_t* experts;
  int top_k;
  int experts_per_rank;
  int copies;
  int num_ranks;
  template <int N>
  __device__ void apply(int64_t i) const {
    static_assert(N == 1);
    const int64_t slot = i / copies;
    const int part = experts[slot] / experts_per_rank;
    bool again = false;
    for (int64_t earlier = slot - slot % top_k; earlier < slot; ++earlier)
      again = again || experts[earlier] / experts_per_rank == part;
    destinations[i] = part * copies + static_cast<int>(i % copies) + (again ? num_ranks : 0);
  }
};

struct LocaliseExperts {
  int32_t* local_experts;
  const int32_t* experts;
  int first;
  int num_local;
  template <int N>
  __device__ void apply(int64_t i) const {
    static_assert(N == 1);
    const int32_t expert = experts[i] - first;
    local_experts[i] = 0 <= expert && expert < num_local ? expert : num_local;
  }
};

int to_int(int64_t value) {
  CHECK(value <= INT32_MAX, value, " does not fit into an int");
  return static_cast<int>(value);
}

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

void find_destinations(Stream& stream, const Tensor& destinations, const Tensor& experts,
                       int64_t experts_per_rank, int64_t copies, int64_t num_ranks) {
  launch_map<1>(stream, destinations.numel(), false,
                FindDestinations{destinations.data<int32_t>(), experts.data<int32_t>(),
                                 to_int(experts.dim(1)), to_int(experts_per_rank), to_int(copies),
                                 to_int(num_ranks)});
}

void localise_experts(Stream& stream, const Tensor& local_experts, const Tensor& experts,
                      int64_t first, int64_t num_local) {
  launch_map<1>(stream, experts.numel(), false,
                LocaliseExperts{local_experts.data<int32_t>(), experts.data<int32_t>(),
                                to_int(first), to_int(num_local)});
}

}  // namespace ferry::cuda
