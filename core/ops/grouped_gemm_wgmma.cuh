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
#include "core/ops/grouped_schedule.h"
#include "core/ops/grouped_tiles.cuh"
#include "core/ops/hopper.cuh"
#include "core/ops/mma.cuh"

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
  static constexpr uint32_t kArrived = kEmpty + kStages * 8;
  static constexpr uint32_t kUnitReady = kArrived + kMultiplyingWarps * 8;
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
  /// What a multiplying warp loads for itself.
  __device__ uint32_t arrived(uint32_t warp) const { return begin + kArrived + 8 * warp; }
  /// A unit was handed out.
  __device__ uint32_t unit_ready(int turn) const { return begin + kUnitReady + 8 * (turn & 1); }
  /// All of the cluster have it (the barrier of block 0).
  __device__ uint32_t unit_taken(int turn) const { return begin + kUnitTaken + 8 * (turn & 1); }
  __device__ uint32_t unit(int turn) const { return begin + kUnit + 4 * (turn & 1); }

  template <bool kGathered>
  __device__ __forceinline__ void init_barriers() const {
    constexpr uint32_t kGathering = kGathered ? kGatheringWarps : 0;
    for (uint32_t i = 0; i < kStages; ++i) {
      hopper::init_barrier(full(i), 1 + kGathering);
      hopper::init_barrier(empty(i), 2 * kMultiplyingWarps);
    }
    for (uint32_t i = 0; i < kMultiplyingWarps; ++i) hopper::init_barrier(arrived(i), 1);
    for (int i = 0; i < 2; ++i) {
      hopper::init_barrier(unit_ready(i), 1);
      hopper::init_barrier(unit_taken(i), 2 * (kMultiplyingWarps + 1 + kGathering));
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

/// What a kernel computes: the kind of product, what becomes of its tiles, and whether x (the left
/// operand forward, the right one of wgrad) is gathered.
template <GroupedKind kKindOf, class EpilogueOf, bool kGatheredOf = false>
struct Work {
  static constexpr bool kGathered = kGatheredOf;
  using Epilogue = EpilogueOf;
  static constexpr GroupedKind kKind = kKindOf;
  static constexpr bool kWgrad = kKind == GroupedKind::Wgrad;
  /// A tile is half gate, half up.
  static constexpr bool kGateAndUp = std::is_same_v<Epilogue, StoreSwiglu>;
  /// Blocks of depth of every tile at least, zeros if need be: its predecessor is stored meanwhile.
  static constexpr int kFewestBlocks = Epilogue::kSteps;

  /// Of 504 for a thread of each warpgroup; one that brings needs more than 24, if it may have
  /// them.
  static constexpr bool kManyRegisters = std::is_same_v<Epilogue, StoreSwigluGradients>;
  static constexpr int kBringingRegisters = kManyRegisters ? 24 : 40;
  static constexpr int kMultiplyingRegisters = kManyRegisters ? 240 : 232;

  /// Of a stage, what comes as boxes, or from the other block of the cluster: a half of gathered x
  /// in wgrad.
  static constexpr uint32_t kBytesCopied = !kGathered ? kBytesStage
                                           : kWgrad   ? kBytesA + kBytesB / 2
                                                      : kBytesB;

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
    if constexpr (!W::kGathered)
      load_box<true>(half_b, maps.b, full, 0, row, tile.tile_n * (kTileColumns / 64) + rank * 2,
                     end, kRowsEnd);
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

/// Gathers x of all tiles: one of kGatheringWarps. Forward, its 64 rows of the tile; for wgrad, of
/// the block's two slabs of 64 columns one, for the other block of the cluster, too. A stage is
/// published when its copies are done, while those of the next are under way: none waits for a
/// stage of the ring before that one was multiplied, nor for a unit, which none needs this for.
template <class W>
class Gatherer {
  // A warp that multiplies a stage lets go of it when it has begun the next.
  static_assert(kGathersAhead + 2 <= kStages);

 public:
  __device__ __forceinline__ Gatherer(const Shared& shared, const Product& p,
                                      Units<W::kKind>& units, int warp, int rank)
      : shared_(shared),
        p_(p),
        units_(units),
        warp_(warp),
        rank_(rank),
        lane_(static_cast<int>(threadIdx.x % 32)),
        box_((W::kWgrad ? kBytesA + static_cast<uint32_t>(rank) * (kBytesB / 2) : 0) +
             static_cast<uint32_t>(warp) * kBytesGathered) {}

  __device__ __forceinline__ void run() {
    for (int turn = 0;; ++turn) {
      const int unit = __shfl_sync(0xffffffffu, shared_.unit_of(turn), 0);
      if (lane_ == 0) shared_.say_taken(turn);
      if (unit >= units_.total()) break;
      gather(units_.tile(unit));
    }
    wait_for_copies<0>();
    for (; under_way_ > 0; --under_way_) publish();
  }

 private:
  __device__ __forceinline__ void gather(const Tile& tile) {
    const int blocks = W::num_blocks(p_, tile);
    const int end = tile.first_row + tile.num_rows;
    if constexpr (W::kWgrad) {
      const int column = tile.tile_n * (kTileColumns / 64) + rank_ * 2 + warp_;
      const int row_end = column * 8 < p_.gather.chunks ? end : 0;
      GatheredRows next = GatheredRows::load(p_.gather, tile.first_row, row_end, lane_);
      for (int block = 0; block < blocks; ++block) {
        const GatheredRows rows = next;
        // The next index is read while this one is used.
        next = GatheredRows::load(p_.gather, tile.first_row + (block + 1) * kTileDepth, row_end,
                                  lane_);
        bring_box(rows, column);
      }
    } else {
      const int row = tile.first_row + tile.tile_m * kTileRows + warp_ * 64;
      const GatheredRows rows = GatheredRows::load(p_.gather, row, end, lane_);
      for (int block = 0; block < blocks; ++block) bring_box(rows, block);
    }
  }

  __device__ __forceinline__ void bring_box(const GatheredRows& rows, int column) {
    hopper::wait_for(shared_.empty(place_.stage), place_.parity ^ 1);
    rows.copy(p_.gather, column, shared_.stage(place_.stage) + box_, lane_);
    commit_copies();
    place_.advance();
    if (under_way_ < kGathersAhead) {
      ++under_way_;
      return;
    }
    wait_for_copies<kGathersAhead>();
    publish();
  }

  /// The oldest stage under way, whose copies are done.
  __device__ __forceinline__ void publish() {
    hopper::publish_to_copies();
    __syncwarp();
    if (lane_ == 0) {
      const uint32_t full = shared_.full(done_);
      hopper::arrive(full);
      if constexpr (W::kWgrad)
        hopper::send_bytes(shared_.stage(done_) + box_, kBytesGathered, full,
                           static_cast<uint32_t>(rank_ ^ 1));
    }
    __syncwarp();
    if (++done_ == kStages) done_ = 0;
  }

  const Shared& shared_;
  const Product& p_;
  Units<W::kKind>& units_;
  int warp_;
  int rank_;
  int lane_;
  uint32_t box_;  // of this warp in a stage
  RingPlace place_;
  uint32_t done_ = 0;  // the stage that is published next
  int under_way_ = 0;
};

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
      if (warp >= 0) Gatherer<W>(shared, p, units, warp, rank).run();
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
