#pragma once

// Rows of x that a forward product reads where they are (Rows in core/ops/grouped_gemm.h). Copies
// of boxes (TMA) cannot follow an index, so two warps copy 16 bytes a lane into the place and the
// order in which such a copy would leave them: boxes of 64 rows of 128 bytes, eight lanes to a
// row, 16-byte chunk c of row r at c ^ r % 8.
//
// Not for wgrad, whose sums go down the rows: each stage has other rows, and to find and copy them
// takes longer than to copy all rows once and multiply the copies.

#include "core/ops/grouped_units.cuh"

namespace ferry::cuda::wgmma {

/// What a lane copies of a box: chunk `lane % 8` of every fourth row, from row lane / 8.
class GatherLane {
 public:
  __device__ __forceinline__ explicit GatherLane(int lane) : lane_(lane) {
    const int row = lane / 8, chunk = lane % 8;
    even_ = static_cast<uint32_t>(row * 128 + (chunk ^ row) * 16);
    odd_ = static_cast<uint32_t>((row + 4) * 128 + (chunk ^ (row + 4)) * 16);
  }
  /// Row of the i-th copy.
  __device__ __forceinline__ int row(int i) const { return 4 * i + lane_ / 8; }
  /// Its bytes of a row of the box, and where they go to.
  __device__ __forceinline__ uint32_t from() const { return static_cast<uint32_t>(lane_ % 8 * 16); }
  __device__ __forceinline__ uint32_t to(int i) const {
    return (i % 2 == 0 ? even_ : odd_) + static_cast<uint32_t>(i / 2) * 1024;
  }

 private:
  int lane_;
  uint32_t even_, odd_;
};

/// Gathers the rows of all tiles: one of kGatheringWarps, a box of each stage. The copies
/// themselves arrive at the stage's barrier when they are done, so as many stages are under way as
/// are empty.
class Gatherer {
  static constexpr int kRows = kTileRows / kGatheringWarps;
  static constexpr int kCopies = kRows / 4;  // of a lane and box

 public:
  __device__ __forceinline__ Gatherer(const Shared& shared, const Product& p,
                                      Units<GroupedKind::Forward>& units, int warp)
      : shared_(shared),
        p_(p),
        units_(units),
        first_(warp * kRows),
        box_(static_cast<uint32_t>(first_) * 128),
        copies_(static_cast<int>(threadIdx.x % 32)) {}

  __device__ __forceinline__ void run() {
    for (int turn = 0;; ++turn) {
      const int unit = __shfl_sync(0xffffffffu, shared_.unit_of(turn), 0);
      if (threadIdx.x % 32 == 0) shared_.say_taken(turn);
      if (unit >= units_.total()) break;
      gather(units_.tile(unit));
    }
    wait_for_copies<0>();
  }

 private:
  __device__ __forceinline__ void gather(const Tile& tile) {
    const int row = tile.first_row + tile.tile_m * kTileRows;
    // Rows behind the group are its last one: their sums are dropped.
    const int last = tile.first_row + tile.num_rows - 1;
    int slots[kCopies];
    uint32_t token[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i)
      slots[i] = p_.gather.slot_of_row[min(row + first_ + copies_.row(i), last)];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) token[i] = p_.gather.offset(slots[i]) + copies_.from();
    for (int block = 0; block < p_.depth_blocks; ++block) {
      hopper::wait_for(shared_.empty(place_.stage), place_.parity ^ 1);
      const uint32_t to = shared_.stage(place_.stage) + box_;
#pragma unroll
      for (int i = 0; i < kCopies; ++i)
        copy_async(to + copies_.to(i), p_.gather.tokens + (token[i] + block * 128));
      hopper::arrive_after_copies(shared_.full(place_.stage));
      place_.advance();
    }
  }

  const Shared& shared_;
  const Product& p_;
  Units<GroupedKind::Forward>& units_;
  int first_;     // of the rows of a tile
  uint32_t box_;  // this warp's in a stage
  GatherLane copies_;
  RingPlace place_;
};

}  // namespace ferry::cuda::wgmma
