#pragma once

// What the threads of a block share in a grouped product (grouped_gemm_wgmma.cuh): the ring of
// stages with its barriers, and which tiles there are.

#include "core/ops/grouped_arguments.cuh"
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
constexpr uint32_t kBytesBox = 2048;  // what a warp stores at once: 16 rows of 128 bytes
constexpr int kGatheringWarps = 2;

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
      hopper::init_barrier(full(i), 1 + 32 * kGathering);
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
        rank_(rank),
        from_both_ends_(p.from_both_ends),
        last_(p.groups - 1) {
    // Pairs below each other always: c clips the last.
    matrix_tiles_m_ = (p.tiles_m + 1) / 2 * 2;
    const int thread = static_cast<int>(threadIdx.x);
    for (int e = thread; e <= groups_; e += kThreads) Shared::store(offset(e), p.offsets[e]);
    __syncthreads();
    for (int e = thread; e < groups_; e += kThreads) Shared::store(order(place_in_order(e)), e);
    __syncthreads();
    if (kKind == GroupedKind::Wgrad && from_both_ends_)
      from_both_ends_ = grouped::lengths_differ(rows_of(Shared::load(order(0))), groups_,
                                                Shared::load(offset(groups_)));
    if (thread < 32) sum_units(thread);
  }

  /// After a barrier.
  __device__ __forceinline__ int total() const { return Shared::load(first(groups_)); }

  /// The unit of a turn. Turns must be asked for in rising order.
  __device__ __forceinline__ Tile tile(int turn) {
    int unit = turn, place_in_order;
    if (kKind == GroupedKind::Wgrad && from_both_ends_)
      unit = grouped::from_both_ends(turn, total());
    if (kKind == GroupedKind::Wgrad && from_both_ends_ && turn % 2 == 1) {
      while (unit < Shared::load(first(last_))) --last_;
      place_in_order = last_;
    } else {
      while (unit >= Shared::load(first(current_ + 1))) ++current_;
      place_in_order = current_;
    }
    Tile tile;
    tile.group = Shared::load(order(place_in_order));
    tile.first_row = Shared::load(offset(tile.group));
    tile.num_rows = rows_of(tile.group);
    const grouped::Place place = grouped::place_of(unit - Shared::load(first(place_in_order)),
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
  // The sums of wgrad are as long as the group: the longest first in order.
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
  bool from_both_ends_;
  int current_ = 0;  // in order, coming from the first
  int last_;         // and from the last
};

}  // namespace ferry::cuda::wgmma
