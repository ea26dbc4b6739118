#pragma once

// Grouped products of BF16 for Hopper: persistent clusters of two blocks, in each of which one
// thread brings operands (TMA) into a ring of stages while two warpgroups multiply them (wgmma),
// 64 x 256 of a tile of 128 x 256 each. Which tiles, core/ops/grouped_schedule.h; who makes them, a
// counter in global memory, so that a cluster that is late takes fewer. One block makes each tile
// and adds it once, so results do not depend on who made it.
//
// A tile is stored while the next one is multiplied (grouped_epilogues.cuh): forward and dgrad
// round their sums to BF16, which takes half the registers; wgrad keeps half of them.
//
// Groups of any size need no tensor map of their own: see row_map() in grouped_gemm_wgmma_cuda.cu.

#include <cuda_bf16.h>

#include <type_traits>

#include "core/ops/grouped_epilogues.cuh"
#include "core/ops/grouped_gather.cuh"
#include "core/ops/grouped_units.cuh"

namespace ferry::cuda::wgmma {

/// What a kernel computes: the kind of product, what becomes of its tiles, and whether x, the left
/// operand of a forward product, is gathered.
template <GroupedKind kKindOf, class EpilogueOf, bool kGatheredOf = false>
struct Work {
  static constexpr bool kGathered = kGatheredOf;
  using Epilogue = EpilogueOf;
  static constexpr GroupedKind kKind = kKindOf;
  static constexpr bool kWgrad = kKind == GroupedKind::Wgrad;
  static_assert(!kGathered || kKind == GroupedKind::Forward);
  /// A tile is half gate, half up.
  static constexpr bool kGateAndUp = std::is_same_v<Epilogue, StoreSwiglu>;
  /// Blocks of depth of every tile at least, zeros if need be: its predecessor is stored meanwhile.
  static constexpr int kFewestBlocks = Epilogue::kSteps;

  /// Of 504 for a thread of each warpgroup; one that brings needs more than 24, if it may have
  /// them, and one that gathers about 50.
  static constexpr bool kManyRegisters = std::is_same_v<Epilogue, StoreSwigluGradients>;
  static constexpr int kBringingRegisters = kManyRegisters ? 24 : kGathered ? 56 : 40;
  static constexpr int kMultiplyingRegisters = kManyRegisters ? 240 : kGathered ? 224 : 232;

  /// Of a stage, what comes as boxes.
  static constexpr uint32_t kBytesCopied = kGathered ? kBytesB : kBytesStage;

  __device__ __forceinline__ static int num_blocks(const Product& p, const Tile& tile) {
    if constexpr (kWgrad) return max(tiles_of(tile.num_rows, kTileDepth), kFewestBlocks);
    return p.depth_blocks;
  }
  /// The first column of the weight's half of a tile.
  __device__ __forceinline__ static int column(const Product& p, const Tile& tile, int half) {
    constexpr int kHalf = kTileColumns / 2;
    return kGateAndUp ? tile.tile_n * kHalf + half * p.ffn : (2 * tile.tile_n + half) * kHalf;
  }
};

/// Hands out units to both blocks: one thread of the cluster.
__device__ __forceinline__ void schedule(const Shared& shared, const Product& p, int total) {
  for (int turn = 0;; ++turn) {
    hopper::wait_for(shared.unit_taken(turn), ((turn >> 1) & 1) ^ 1);
    const int unit = atomicAdd(p.counter, 1);
    for (uint32_t rank = 0; rank < 2; ++rank)
      hopper::store_async(shared.unit(turn), static_cast<uint32_t>(unit), shared.unit_ready(turn),
                          rank);
    if (unit >= total) return;
  }
}

/// Loads block `block` of the sums of a tile into a stage, with what the other block of the cluster
/// loads for both.
template <class W>
__device__ __forceinline__ void load_stage(const Maps& maps, const Product& p, const Tile& tile,
                                           int block, uint32_t a, uint32_t full, int rank) {
  using hopper::load_box;
  const uint32_t b = a + kBytesA;
  const uint32_t half_b = b + static_cast<uint32_t>(rank) * (kBytesB / 2);
  const int end = tile.first_row + tile.num_rows;
  const int depth = block * kTileDepth;
  if constexpr (W::kWgrad) {
    const int row = kRowsEnd - tile.num_rows + depth;
    load_box<false>(a, maps.a, full, 0, row, tile.tile_m * (kTileRows / 64), end, kRowsEnd);
    load_box<true>(half_b, maps.b, full, 0, row, tile.tile_n * (kTileColumns / 64) + rank * 2, end,
                   kRowsEnd);
  } else {
    constexpr int kHalf = kTileRows / 2;
    const int row = kRowsEnd - tile.num_rows + tile.tile_m * kTileRows;
    const auto load_b = [&]<bool kShared>(uint32_t to, int half) {
      const int column = W::column(p, tile, half);
      if constexpr (W::kKind == GroupedKind::Forward)
        load_box<kShared>(to, maps.b, full, depth, column, tile.group);
      else
        load_box<kShared>(to, maps.b, full, 0, depth, column / 64, tile.group);
    };
    if (tile.side_by_side) {
      if constexpr (!W::kGathered)
        load_box<true>(a + static_cast<uint32_t>(rank) * (kBytesA / 2), maps.a, full, depth,
                       row + rank * kHalf, end, kRowsEnd);
      load_b.template operator()<false>(b, 0);
      load_b.template operator()<false>(b + kBytesB / 2, 1);
    } else {
      if constexpr (!W::kGathered) {
        load_box<false>(a, maps.a, full, depth, row, end, kRowsEnd);
        load_box<false>(a + kBytesA / 2, maps.a, full, depth, row + kHalf, end, kRowsEnd);
      }
      load_b.template operator()<true>(half_b, rank);
    }
  }
}

/// Brings the operands of all tiles: one thread of the block.
template <class W>
__device__ __forceinline__ void bring(const Shared& shared, const Maps& maps, const Product& p,
                                      Units<W::kKind>& units, int rank) {
  RingPlace place;
  for (int turn = 0;; ++turn) {
    hopper::expect_bytes(shared.unit_ready(turn), 4);
    const int unit = shared.unit_of(turn);
    shared.say_taken(turn);
    if (unit >= units.total()) return;
    const Tile tile = units.tile(unit);
    const int blocks = W::num_blocks(p, tile);
    for (int block = 0; block < blocks; ++block) {
      const uint32_t full = shared.full(place.stage);
      hopper::wait_for(shared.empty(place.stage), place.parity ^ 1);
      hopper::expect_bytes(full, W::kBytesCopied);
      load_stage<W>(maps, p, tile, block, shared.stage(place.stage), full, rank);
      place.advance();
    }
  }
}

/// A warpgroup's half of each tile of a block.
template <class W>
class Multiplier {
 public:
  __device__ __forceinline__ Multiplier(const Shared& shared, const Maps& maps, const Product& p,
                                        Units<W::kKind>& units)
      : shared_(shared),
        p_(p),
        units_(units),
        lane_(threadIdx.x % 32),
        half_(threadIdx.x / 128 - 1),
        epilogue_{{maps, p, lane_,
                   shared.begin + Shared::kStaging + (threadIdx.x / 32 - 4) * 2 * kBytesBox,
                   shared.arrived(threadIdx.x / 32 - 4)}} {}

  __device__ __forceinline__ void run() {
    hopper::Sums sums;
    uint32_t kept[64] = {};  // of the tile before, see the epilogue
    Destination before;
    for (int turn = 0;; ++turn) {
      const int unit = __shfl_sync(0xffffffffu, shared_.unit_of(turn), 0);
      if (lane_ == 0) shared_.say_taken(turn);
      if (unit >= units_.total()) break;
      const Tile tile = units_.tile(unit);
      const int blocks = W::num_blocks(p_, tile);
      const Destination destination = destination_of(tile);
      if (!W::kWgrad && tile.num_rows - tile.tile_m * kTileRows <= static_cast<int>(half_) * 64) {
        // No rows for this warpgroup, but the stages come all the same.
        finish(before, kept);
        before = {};
        for (int block = 0; block < blocks; ++block) {
          hopper::wait_for(shared_.full(place_.stage), place_.parity);
          __syncwarp();
          release(place_.stage);
          place_.advance();
        }
        continue;
      }
#pragma unroll
      for (int step = 0; step < Epilogue::kSteps; ++step) {
        multiply_block(sums, step > 0);
        epilogue_.step(step, before, kept);
      }
      for (int block = W::kFewestBlocks; block < blocks; ++block) multiply_block(sums, true);
      hopper::wait_for_products<0>();
      release(last_);
      keep(sums, kept);
      if constexpr (W::kWgrad) {
#pragma unroll
        for (int part = 0; part < Epilogue::kParts; ++part)
          epilogue_.add(part, destination, [&](int i) { return sums[0][i]; });
      }
      before = destination;
    }
    finish(before, kept);
    if (lane_ == 0) hopper::wait_for_boxes();
  }

 private:
  using Epilogue = typename W::Epilogue;
  using OperandA = hopper::OperandAddress<!W::kWgrad>;
  using OperandB = hopper::OperandAddress<W::kKind == GroupedKind::Forward>;

  __device__ __forceinline__ Destination destination_of(const Tile& tile) const {
    Destination to;
    to.column = W::column(p_, tile, 0);
    to.row = tile.tile_m * kTileRows + static_cast<int>(threadIdx.x / 32 - 4) * 16;
    to.matrix = tile.group;
    if constexpr (!W::kWgrad) {
      to.row += kRowsEnd - tile.num_rows;
      to.matrix = tile.first_row + tile.num_rows;
    }
    return to;
  }

  __device__ __forceinline__ void release(uint32_t stage) const {
    if (lane_ < 2) hopper::arrive_at(shared_.empty(stage), lane_);
  }

  /// The next stage; while it is multiplied, the one before is released.
  __device__ __forceinline__ void multiply_block(hopper::Sums& sums, bool accumulate) {
    hopper::wait_for(shared_.full(place_.stage), place_.parity);
    // Gathered rows were written as threads write.
    if constexpr (W::kGathered) hopper::publish_to_copies();
    const uint32_t begin = shared_.stage(place_.stage);
    const uint64_t a = OperandA::descriptor(begin + half_ * (kBytesA / 2));
    const uint64_t b = OperandB::descriptor(begin + kBytesA);
    hopper::begin_products();
#pragma unroll
    for (int step = 0; step < kTileDepth / 16; ++step)
      hopper::multiply<!W::kWgrad, W::kKind == GroupedKind::Forward>(
          sums, a + step * OperandA::kStep, b + step * OperandB::kStep, accumulate || step > 0);
    hopper::commit_products();
    if (accumulate) {  // else there is none before
      hopper::wait_for_products<1>();
      release(last_);
    }
    last_ = place_.stage;
    place_.advance();
  }

  __device__ __forceinline__ void keep(const hopper::Sums& sums, uint32_t (&kept)[64]) const {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      if constexpr (W::kWgrad)
        // Not a copy that the compiler could put off until the next products write the sums.
        asm volatile("mov.b32 %0, %1;" : "=r"(kept[i]) : "f"(sums[1][i]));
      else
        kept[i] = pack(sums[i / 32][2 * (i % 32)], sums[i / 32][2 * (i % 32) + 1]);
    }
  }

  __device__ __forceinline__ void finish(const Destination& to, const uint32_t (&kept)[64]) {
#pragma unroll
    for (int step = 0; step < Epilogue::kSteps; ++step) epilogue_.step(step, to, kept);
  }

  const Shared& shared_;
  const Product& p_;
  Units<W::kKind>& units_;
  uint32_t lane_;
  uint32_t half_;
  Epilogue epilogue_;
  RingPlace place_;
  uint32_t last_ = 0;  // the stage before
};

template <class W>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ Maps maps, const Product p) {
  extern __shared__ uint8_t memory[];
  const Shared shared(memory);
  const int rank = static_cast<int>(hopper::rank_in_cluster());
  if (threadIdx.x == 0) shared.init_barriers<W::kGathered>();
  Units<W::kKind> units(shared, p, rank);
  hopper::synchronize_cluster();

  if (threadIdx.x < 128) {
    hopper::give_registers<W::kBringingRegisters>();
    if (threadIdx.x == 0) bring<W>(shared, maps, p, units, rank);
    if (threadIdx.x == 32 && rank == 0) schedule(shared, p, units.total());
    if constexpr (W::kGathered) {
      const int warp = static_cast<int>(threadIdx.x / 32) - (4 - kGatheringWarps);
      if (warp >= 0) Gatherer(shared, p, units, warp).run();
    }
  } else {
    hopper::take_registers<W::kMultiplyingRegisters>();
    Multiplier<W>(shared, maps, p, units).run();
  }

  __syncwarp();
  hopper::synchronize_cluster();  // none arrives at barriers of a block that is gone
  if (threadIdx.x == 0 && rank == 0) {
    __threadfence();
    if (atomicAdd(p.counter + 1, 1) == static_cast<int>(gridDim.x / 2) - 1) {
      p.counter[0] = 0;
      p.counter[1] = 0;
    }
  }
}

}  // namespace ferry::cuda::wgmma
