#pragma once

// Grouped products of BF16 for Hopper: persistent clusters of two blocks, in each of which one
// thread brings operands (TMA) into a ring of stages while two warpgroups multiply them (wgmma),
// 64 x 256 of a tile of 128 x 256 each. Which tiles, core/ops/grouped_schedule.h; who makes them, a
// counter in global memory, so that a cluster that is late takes fewer. One block makes each tile
// and adds it once, so results do not depend on who made it.
//
// An SM stores a tile more slowly than it could multiply meanwhile, so a tile is stored while the
// next one is multiplied: forward and dgrad round their sums to BF16 (half the registers) and store
// them in four parts behind the first products of the next tile; wgrad does so with half of them.
//
// Groups of any size need no tensor map of their own: see row_map() in grouped_gemm_wgmma_cuda.cu.

#include <cuda_bf16.h>

#include "core/ops/grouped_schedule.h"
#include "core/ops/grouped_tiles.cuh"
#include "core/ops/hopper.cuh"
#include "core/ops/mma.cuh"
#include "core/ops/vector_cuda.cuh"

namespace ferry::cuda::wgmma {

using grouped::kTileColumns;
using grouped::kTileDepth;
using grouped::kTileRows;
using grouped::tiles_of;

constexpr int kStages = 4;
constexpr int kMultiplyingWarps = 8;
constexpr int kThreads = 128 + 32 * kMultiplyingWarps;  // the first warpgroup brings operands
constexpr uint32_t kBytesA = kTileRows * kTileDepth * 2;
constexpr uint32_t kBytesB = kTileColumns * kTileDepth * 2;
constexpr uint32_t kBytesStage = kBytesA + kBytesB;
constexpr uint32_t kBytesBox = 2048;  // what a warp stores at once: 16 rows of 128 bytes
constexpr int kParts = 4;             // of a tile that is stored later
/// Blocks of depth of every tile at least, zeros if need be: its predecessor is stored meanwhile.
constexpr int kFewestBlocks = 4;
constexpr int kFewestBlocksWgrad = 8;
/// Coordinate of the end of a group in row maps.
constexpr int kRowsEnd = 1 << 30;

struct Maps {
  CUtensorMap a, b, c;
};

struct Product {
  const int* offsets = nullptr;  // [groups + 1], on the device
  int groups = 0;
  int tiles_m = 0;         // of each matrix of c (wgrad)
  int tiles_n = 0;         // of c
  int depth_blocks = 0;    // of kTileDepth (forward, dgrad)
  int* counter = nullptr;  // [2], zeros, and zeros again afterwards: units taken, clusters done
};

struct Tile {
  int group;
  int first_row;  // of the group
  int num_rows;   // of the group
  int tile_m;
  int tile_n;
  bool side_by_side;
};

/// The parts of a block's shared memory. Addresses are constants from the first, so that they take
/// no registers.
struct Shared {
  static constexpr uint32_t kStaging = kStages * kBytesStage;  // two boxes of each multiplying warp
  static constexpr uint32_t kFull = kStaging + kMultiplyingWarps * 2 * kBytesBox;
  static constexpr uint32_t kEmpty = kFull + kStages * 8;
  static constexpr uint32_t kUnitReady = kEmpty + kStages * 8;
  static constexpr uint32_t kUnitTaken = kUnitReady + 2 * 8;
  static constexpr uint32_t kUnit = kUnitTaken + 2 * 8;
  static constexpr uint32_t kGroups = kUnit + 2 * 4;  // I32 [3 * groups + 2]
  static int bytes(int groups) { return static_cast<int>(1024 + kGroups) + (3 * groups + 2) * 4; }

  uint32_t begin;  // boxes are swizzled by address in 1024 bytes

  __device__ explicit Shared(const uint8_t* memory)
      : begin((shared_address(memory) + 1023) & ~1023u) {}

  __device__ uint32_t stage(uint32_t i) const { return begin + i * kBytesStage; }
  /// The stage has arrived.
  __device__ uint32_t full(uint32_t stage) const { return begin + kFull + 8 * stage; }
  /// No warp of the cluster reads the stage any more.
  __device__ uint32_t empty(uint32_t stage) const { return begin + kEmpty + 8 * stage; }
  /// A unit was handed out.
  __device__ uint32_t unit_ready(int turn) const { return begin + kUnitReady + 8 * (turn & 1); }
  /// All of the cluster have it (the barrier of block 0).
  __device__ uint32_t unit_taken(int turn) const { return begin + kUnitTaken + 8 * (turn & 1); }
  __device__ uint32_t unit(int turn) const { return begin + kUnit + 4 * (turn & 1); }

  __device__ void init_barriers() const {
    for (uint32_t i = 0; i < kStages; ++i) {
      hopper::init_barrier(full(i), 1);
      hopper::init_barrier(empty(i), 2 * kMultiplyingWarps);
    }
    for (int i = 0; i < 2; ++i) {
      hopper::init_barrier(unit_ready(i), 1);
      hopper::init_barrier(unit_taken(i), 2 * (kMultiplyingWarps + 1));
    }
    hopper::publish_barriers();
  }

  __device__ __forceinline__ static int load(uint32_t address) {
    int value;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
  }
  __device__ __forceinline__ static void store(uint32_t address, int value) {
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
  }

  __device__ __forceinline__ int unit_of(int turn) const {
    hopper::wait_for(unit_ready(turn), (turn >> 1) & 1);
    return load(unit(turn));
  }
  /// One thread of each warp that asked for the unit of the turn, after all have it.
  __device__ __forceinline__ void say_taken(int turn) const {
    hopper::arrive_at(unit_taken(turn), 0);
  }
};

/// A place in the ring of stages; all who use it go around it in step.
struct RingPlace {
  uint32_t stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// The units of all groups, one group after the other.
template <GroupedKind kKind>
class Units {
 public:
  /// All threads of the block. Ends without a barrier.
  __device__ __forceinline__ Units(const Shared& shared, const Product& p, int rank)
      : first_(shared.begin + Shared::kGroups),
        groups_(p.groups),
        tiles_n_(p.tiles_n),
        rank_(rank) {
    // Pairs below each other always: c clips the last.
    matrix_tiles_m_ = (p.tiles_m + 1) / 2 * 2;
    const int thread = static_cast<int>(threadIdx.x);
    for (int e = thread; e <= groups_; e += kThreads) Shared::store(offset(e), p.offsets[e]);
    __syncthreads();
    for (int e = thread; e < groups_; e += kThreads) Shared::store(order(place_in_order(e)), e);
    __syncthreads();
    if (thread < 32) sum_units(thread);
  }

  /// After a barrier.
  __device__ __forceinline__ int total() const { return Shared::load(first(groups_)); }

  /// Units must be asked for in rising order.
  __device__ __forceinline__ Tile tile(int unit) {
    while (unit >= Shared::load(first(current_ + 1))) ++current_;
    Tile tile;
    tile.group = Shared::load(order(current_));
    tile.first_row = Shared::load(offset(tile.group));
    tile.num_rows = rows_of(tile.group);
    const grouped::Place place = grouped::place_of(unit - Shared::load(first(current_)),
                                                   tiles_m(tile.num_rows), tiles_n_, rank_);
    tile.tile_m = place.tile_m;
    tile.tile_n = place.tile_n;
    tile.side_by_side = place.side_by_side;
    return tile;
  }

 private:
  // Tables: units of the groups before, in order; offsets of groups; groups in order.
  __device__ uint32_t first(int i) const { return first_ + static_cast<uint32_t>(i) * 4; }
  __device__ uint32_t offset(int e) const { return first(groups_ + 1 + e); }
  __device__ uint32_t order(int i) const { return first(2 * groups_ + 2 + i); }

  __device__ int rows_of(int e) const {
    return Shared::load(offset(e + 1)) - Shared::load(offset(e));
  }
  __device__ int tiles_m(int num_rows) const {
    if constexpr (kKind == GroupedKind::Wgrad) return num_rows > 0 ? matrix_tiles_m_ : 0;
    return tiles_of(num_rows, kTileRows);
  }
  // The sums of wgrad are as long as the group: the longest first.
  __device__ __forceinline__ int place_in_order(int e) const {
    if constexpr (kKind != GroupedKind::Wgrad) return e;
    int before = 0;
    for (int other = 0; other < groups_; ++other)
      before += rows_of(other) > rows_of(e) || (rows_of(other) == rows_of(e) && other < e);
    return before;
  }
  __device__ __forceinline__ void sum_units(int lane) {
    int before = 0;
    for (int begin = 0; begin < groups_; begin += 32) {
      const int i = begin + lane;
      int sum = 0;
      if (i < groups_) sum = grouped::num_units(tiles_m(rows_of(Shared::load(order(i)))), tiles_n_);
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, sum, distance);
        if (lane >= distance) sum += other;
      }
      if (i < groups_) Shared::store(first(i + 1), before + sum);
      before += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0) Shared::store(first(0), 0);
  }

  uint32_t first_;
  int groups_;
  int matrix_tiles_m_;
  int tiles_n_;
  int rank_;
  int current_ = 0;
};

template <GroupedKind kKind>
__device__ __forceinline__ int num_blocks(const Product& p, const Tile& tile) {
  if constexpr (kKind == GroupedKind::Wgrad)
    return max(tiles_of(tile.num_rows, kTileDepth), kFewestBlocksWgrad);
  return p.depth_blocks;
}

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
template <GroupedKind kKind>
__device__ __forceinline__ void load_stage(const Maps& maps, const Tile& tile, int block,
                                           uint32_t a, uint32_t full, int rank) {
  using hopper::load_box;
  const uint32_t b = a + kBytesA;
  const uint32_t half_b = b + static_cast<uint32_t>(rank) * (kBytesB / 2);
  const int end = tile.first_row + tile.num_rows;
  const int depth = block * kTileDepth;
  if constexpr (kKind == GroupedKind::Wgrad) {
    const int row = kRowsEnd - tile.num_rows + depth;
    load_box<false>(a, maps.a, full, 0, row, tile.tile_m * (kTileRows / 64), end, kRowsEnd);
    load_box<true>(half_b, maps.b, full, 0, row, tile.tile_n * (kTileColumns / 64) + rank * 2, end,
                   kRowsEnd);
  } else {
    constexpr int kHalf = kTileRows / 2;
    const int row = kRowsEnd - tile.num_rows + tile.tile_m * kTileRows;
    const auto load_b = [&]<bool kShared>(uint32_t to, int half) {
      const int column = tile.tile_n * kTileColumns + half * (kTileColumns / 2);
      if constexpr (kKind == GroupedKind::Forward)
        load_box<kShared>(to, maps.b, full, depth, column, tile.group);
      else
        load_box<kShared>(to, maps.b, full, 0, depth, column / 64, tile.group);
    };
    if (tile.side_by_side) {
      load_box<true>(a + static_cast<uint32_t>(rank) * (kBytesA / 2), maps.a, full, depth,
                     row + rank * kHalf, end, kRowsEnd);
      load_b.template operator()<false>(b, 0);
      load_b.template operator()<false>(b + kBytesB / 2, 1);
    } else {
      load_box<false>(a, maps.a, full, depth, row, end, kRowsEnd);
      load_box<false>(a + kBytesA / 2, maps.a, full, depth, row + kHalf, end, kRowsEnd);
      load_b.template operator()<true>(half_b, rank);
    }
  }
}

/// Brings the operands of all tiles: one thread of the block.
template <GroupedKind kKind>
__device__ __forceinline__ void bring(const Shared& shared, const Maps& maps, const Product& p,
                                      Units<kKind>& units, int rank) {
  RingPlace place;
  for (int turn = 0;; ++turn) {
    hopper::expect_bytes(shared.unit_ready(turn), 4);
    const int unit = shared.unit_of(turn);
    shared.say_taken(turn);
    if (unit >= units.total()) return;
    const Tile tile = units.tile(unit);
    const int blocks = num_blocks<kKind>(p, tile);
    for (int block = 0; block < blocks; ++block) {
      const uint32_t full = shared.full(place.stage);
      hopper::wait_for(shared.empty(place.stage), place.parity ^ 1);
      hopper::expect_bytes(full, kBytesStage);
      load_stage<kKind>(maps, tile, block, shared.stage(place.stage), full, rank);
      place.advance();
    }
  }
}

/// Where a warp's 16 rows of a tile are in c, as coordinates of its map; row kRowsEnd: nowhere.
struct Destination {
  int column = 0;
  int row = kRowsEnd;
  int matrix = 0;  // of wgrad; else the end of the group
};

/// A warpgroup's half of each tile of a block.
template <GroupedKind kKind>
class Multiplier {
 public:
  __device__ __forceinline__ Multiplier(const Shared& shared, const Maps& maps, const Product& p,
                                        Units<kKind>& units)
      : shared_(shared),
        maps_(maps),
        p_(p),
        units_(units),
        lane_(threadIdx.x % 32),
        half_(threadIdx.x / 128 - 1),
        boxes_(shared.begin + Shared::kStaging + (threadIdx.x / 32 - 4) * 2 * kBytesBox) {}

  __device__ __forceinline__ void run() {
    constexpr int kBlocksPerPart = kWgrad ? 2 : 1;
    hopper::Sums sums;
    // Of the tile before: rounded sums in pairs; of wgrad the bits of its right half.
    uint32_t stored_later[64] = {};
    Destination before;
    for (int turn = 0;; ++turn) {
      const int unit = __shfl_sync(0xffffffffu, shared_.unit_of(turn), 0);
      if (lane_ == 0) shared_.say_taken(turn);
      if (unit >= units_.total()) break;
      const Tile tile = units_.tile(unit);
      const int blocks = num_blocks<kKind>(p_, tile);
      const Destination destination = destination_of(tile);
      if (!kWgrad && tile.num_rows - tile.tile_m * kTileRows <= static_cast<int>(half_) * 64) {
        // No rows for this warpgroup, but the stages come all the same.
#pragma unroll
        for (int part = 0; part < kParts; ++part) store_part(part, before, stored_later);
        before = {};
        for (int block = 0; block < blocks; ++block) {
          hopper::wait_for(shared_.full(place_.stage), place_.parity);
          __syncwarp();
          release(place_.stage);
          place_.advance();
        }
        continue;
      }
      uint32_t last = 0;
      // Both loops do the same, but the first stores the tile before as well.
#pragma unroll
      for (int block = 0; block < kParts * kBlocksPerPart; ++block) {
        multiply_stage(sums, block > 0);
        if (block > 0) {
          hopper::wait_for_products<1>();
          release(last);
        }
        last = place_.stage;
        place_.advance();
        if (block % kBlocksPerPart == 0) store_part(block / kBlocksPerPart, before, stored_later);
      }
      for (int block = kParts * kBlocksPerPart; block < blocks; ++block) {
        multiply_stage(sums, true);
        hopper::wait_for_products<1>();
        release(last);
        last = place_.stage;
        place_.advance();
      }
      hopper::wait_for_products<0>();
      release(last);
      if constexpr (kWgrad) {
        // Not a copy that the compiler could put off until the next products write the sums.
#pragma unroll
        for (int i = 0; i < 64; ++i)
          asm volatile("mov.b32 %0, %1;" : "=r"(stored_later[i]) : "f"(sums[1][i]));
#pragma unroll
        for (int part = 0; part < kParts; ++part)
          add_part(part, destination, [&](int i) { return sums[0][i]; });
      } else {
#pragma unroll
        for (int i = 0; i < 64; ++i)
          stored_later[i] = pack(sums[i / 32][2 * (i % 32)], sums[i / 32][2 * (i % 32) + 1]);
      }
      before = destination;
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) store_part(part, before, stored_later);
    if (lane_ == 0) hopper::wait_for_boxes();
  }

 private:
  static constexpr bool kWgrad = kKind == GroupedKind::Wgrad;
  using OperandA = hopper::OperandAddress<!kWgrad>;
  using OperandB = hopper::OperandAddress<kKind == GroupedKind::Forward>;

  __device__ __forceinline__ Destination destination_of(const Tile& tile) const {
    Destination to;
    to.column = tile.tile_n * kTileColumns;
    to.row = tile.tile_m * kTileRows + static_cast<int>(threadIdx.x / 32 - 4) * 16;
    to.matrix = tile.group;
    if constexpr (!kWgrad) {
      to.row += kRowsEnd - tile.num_rows;
      to.matrix = tile.first_row + tile.num_rows;
    }
    return to;
  }

  __device__ __forceinline__ void release(uint32_t stage) const {
    if (lane_ < 2) hopper::arrive_at(shared_.empty(stage), lane_);
  }

  __device__ __forceinline__ void multiply_stage(hopper::Sums& sums, bool accumulate) const {
    hopper::wait_for(shared_.full(place_.stage), place_.parity);
    const uint32_t begin = shared_.stage(place_.stage);
    const uint64_t a = OperandA::descriptor(begin + half_ * (kBytesA / 2));
    const uint64_t b = OperandB::descriptor(begin + kBytesA);
    hopper::begin_products();
#pragma unroll
    for (int step = 0; step < kTileDepth / 16; ++step)
      hopper::multiply<!kWgrad, kKind == GroupedKind::Forward>(
          sums, a + step * OperandA::kStep, b + step * OperandB::kStep, accumulate || step > 0);
    hopper::commit_products();
  }

  // One of the two boxes of this warp that it may write.
  __device__ __forceinline__ uint32_t free_box(int part) const {
    if (lane_ == 0) hopper::wait_for_reads_of_boxes<1>();
    __syncwarp();
    return boxes_ + part % 2 * kBytesBox;
  }

  __device__ __forceinline__ void store_part(int part, const Destination& to,
                                             const uint32_t (&values)[64]) const {
    if constexpr (kWgrad)
      add_part(kParts + part, to, [&](int i) { return __uint_as_float(values[i]); });
    else
      store_rows(part, to, values);
  }

  // 64 columns of this warp's 16 rows. 16-byte chunks of a row of a box are permuted as the copy
  // expects them.
  __device__ __forceinline__ void store_rows(int part, const Destination& to,
                                             const uint32_t (&pairs)[64]) const {
    const uint32_t box = free_box(part);
    const uint32_t row = lane_ % 16;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const int first = part * 16 + static_cast<int>(i) * 4;
      const uint32_t fragment[4] = {pairs[first], pairs[first + 1], pairs[first + 2],
                                    pairs[first + 3]};
      const uint32_t chunk = (2 * i + lane_ / 16) ^ (row % 8);
      hopper::store_matrices(box + row * 128 + chunk * 16, fragment);
    }
    hopper::publish_to_copies();
    __syncwarp();
    if (lane_ != 0) return;
    if (to.row < kRowsEnd)
      hopper::store_box(maps_.c, box, to.column + part * 64, to.row, to.matrix, kRowsEnd);
    hopper::commit_boxes();
  }

  // Columns [32 part, 32 part + 32) of this warp's 16 rows; value(i) is element i of their half.
  template <class Value>
  __device__ __forceinline__ void add_part(int part, const Destination& to, Value&& value) const {
    const uint32_t box = free_box(part);
    const uint32_t row = lane_ / 4;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const int first = part % kParts * 16 + static_cast<int>(i) * 4;
      const uint32_t chunk = (2 * i + lane_ % 4 / 2) ^ row;
      const uint32_t address = box + row * 128 + chunk * 16 + lane_ % 2 * 8;
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(value(first)),
                   "f"(value(first + 1))
                   : "memory");
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address + 1024), "f"(value(first + 2)),
                   "f"(value(first + 3))
                   : "memory");
    }
    hopper::publish_to_copies();
    __syncwarp();
    if (lane_ != 0) return;
    if (to.row < kRowsEnd) hopper::add_box(maps_.c, box, to.column + part * 32, to.row, to.matrix);
    hopper::commit_boxes();
  }

  const Shared& shared_;
  const Maps& maps_;
  const Product& p_;
  Units<kKind>& units_;
  uint32_t lane_;
  uint32_t half_;
  uint32_t boxes_;
  RingPlace place_;
};

template <GroupedKind kKind>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ Maps maps, const Product p) {
  extern __shared__ uint8_t memory[];
  const Shared shared(memory);
  const int rank = static_cast<int>(hopper::rank_in_cluster());
  if (threadIdx.x == 0) shared.init_barriers();
  Units<kKind> units(shared, p, rank);
  hopper::synchronize_cluster();

  if (threadIdx.x < 128) {
    hopper::give_registers<40>();
    if (threadIdx.x == 0) bring<kKind>(shared, maps, p, units, rank);
    if (threadIdx.x == 32 && rank == 0) schedule(shared, p, units.total());
  } else {
    hopper::take_registers<232>();
    Multiplier<kKind>(shared, maps, p, units).run();
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
