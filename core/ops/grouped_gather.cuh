#pragma once

// Rows that a grouped product reads where they are (Rows in core/ops/grouped_gemm.h). Copies of
// boxes (TMA) cannot follow an index, so two warps copy 16 bytes a lane into the place and the
// order in which such a copy would leave them: one box of 64 rows of 128 bytes a warp and stage,
// eight lanes to a row, 16-byte chunk c of row r at c ^ r % 8.

#include "core/ops/hopper.cuh"
#include "core/ops/mma.cuh"

namespace ferry::cuda::wgmma {

constexpr int kGatheringWarps = 2;
/// Stages of a warp whose copies are under way while it issues the next.
constexpr int kGathersAhead = 2;
constexpr uint32_t kBytesGathered = 64 * 128;

/// Tokens x [T, K] and their order.
struct GatherSource {
  const uint8_t* tokens = nullptr;   // 16-byte aligned
  const int* slot_of_row = nullptr;  // [R]
  uint32_t choices = 1;              // R / T
  int chunks = 0;                    // of 16 bytes in a token
};

/// The tokens of 64 rows: a lane has those of rows `lane` and 32 + `lane`, as the number of chunks
/// before the token; -1: zeros instead.
struct GatheredRows {
  int before[2];

  /// Rows [row, row + 64) of all rows, of which those from `end` on are zeros.
  __device__ __forceinline__ static GatheredRows load(const GatherSource& source, int row, int end,
                                                      int lane) {
    GatheredRows rows;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = row + i * 32 + lane;
      rows.before[i] = -1;
      if (r < end)
        rows.before[i] =
            static_cast<int>(static_cast<uint32_t>(source.slot_of_row[r]) / source.choices) *
            source.chunks;
    }
    return rows;
  }

  /// Starts to copy chunks [8 column, 8 column + 8) of the rows to a box.
  __device__ __forceinline__ void copy(const GatherSource& source, int column, uint32_t box,
                                       int lane) const {
    const int chunk = lane % 8;
    const uint8_t* from = source.tokens + (int64_t{column} * 8 + chunk) * 16;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Two at a time, since a warp that gathers has few registers.
#pragma unroll 2
      for (int i = 0; i < 8; ++i) {
        const int row = 4 * i + lane / 8;  // of the half
        const int first = __shfl_sync(0xffffffffu, before[half], row);
        const auto to = static_cast<uint32_t>((32 * half + row) * 128 + (chunk ^ (row % 8)) * 16);
        copy_async(box + to, from + int64_t{max(first, 0)} * 16, first >= 0);
      }
    }
  }
};

}  // namespace ferry::cuda::wgmma
