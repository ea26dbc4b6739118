#pragma once

// What a grouped product on Hopper's units (grouped_gemm_wgmma.cuh) is told.

#include <cuda.h>

#include <cstdint>

namespace ferry::cuda::wgmma {

/// Tokens x [T, K] and their order.
struct GatherSource {
  const uint8_t* tokens = nullptr;   // 16-byte aligned, less than 2^32 bytes
  const int* slot_of_row = nullptr;  // [R]
  uint32_t token_bytes = 0;
  // t = (hi32(slot * magic) + slot) >> shift is slot / (R / T), for slots below 2^31 (Granlund and
  // Montgomery, 1994).
  uint32_t magic = 0;
  int shift = 0;

  __host__ void set_choices(uint32_t choices) {
    for (shift = 0; (uint64_t{1} << shift) < choices; ++shift) {
    }
    const uint64_t rest = (uint64_t{1} << shift) - choices;
    magic = static_cast<uint32_t>((rest << 32) / choices + 1);
  }
  /// Where the token of a slot begins.
  __device__ __forceinline__ uint32_t offset(int slot) const {
    const auto s = static_cast<uint32_t>(slot);
    return ((__umulhi(s, magic) + s) >> shift) * token_bytes;
  }
};

/// Coordinate of the end of a group in row maps.
constexpr int kRowsEnd = 1 << 30;

/// a, b: operands; that of gathered rows is not used. c: the result. d: h of SwiGLU; gate and up of
/// its backward.
struct Maps {
  CUtensorMap a, b, c, d;
};

struct Product {
  const int* offsets = nullptr;  // [groups + 1], on the device
  int groups = 0;
  int tiles_m = 0;         // of each matrix of c (wgrad)
  int tiles_n = 0;         // of c
  int depth_blocks = 0;    // of kTileDepth (forward, dgrad)
  int* counter = nullptr;  // [2], zeros, and zeros again afterwards: units taken, clusters done
  // SwiGLU.
  int ffn = 0;
  const float* prob = nullptr;  // [R], or null: 1
  float* dprob = nullptr;       // [tiles_n, R]: sums over the columns of a tile
  int num_rows = 0;             // R
  GatherSource gather;          // x, where it is gathered
  bool from_both_ends = false;  // the order of units (wgrad), see grouped_schedule.h
};

}  // namespace ferry::cuda::wgmma
