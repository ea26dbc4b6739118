#pragma once

// Grouped products of BF16 on the tensor cores: blocks of 8 warps, each with 64 x 64 of a tile of
// 128 x 256; operands arrive in a ring of four stages; the operands of the next tile are on their
// way while a tile is stored. One block makes each tile, so sums have a fixed order.

#include <cuda_bf16.h>

#include "core/ops/grouped_tiles.cuh"
#include "core/ops/mma.cuh"

namespace ferry::cuda::mma {

constexpr int kTileM = 128;
constexpr int kTileN = 256;
constexpr int kTileDepth = 64;
constexpr int kStages = 4;
constexpr int kThreads = 256;
constexpr int kWarpTile = 64;
constexpr int kBytesA = kTileM * kTileDepth * 2;
constexpr int kBytesB = kTileN * kTileDepth * 2;
constexpr int kBytesStage = kBytesA + kBytesB;

// One operand of a tile. kDepthContiguous: stored as rows of c's rows (or columns) with the
// summed index contiguous; else as rows of the summed index. In shared memory a stage has the same
// order, in 16-byte chunks whose places are permuted within each 128 bytes, so that the 8 rows of a
// matrix instruction lie in different banks.
template <int kSize, bool kDepthContiguous>
struct Operand {
  const __nv_bfloat16* data;  // the tile's first element
  int64_t stride;             // elements from one stored row to the next
  int size;                   // rows (columns) of c left from here; may exceed kSize
  int depth;                  // length of the sum

  static constexpr int kRowChunks = (kDepthContiguous ? kTileDepth : kSize) / 8;

  __device__ static uint32_t place(int row, int chunk) {
    return static_cast<uint32_t>(row * kRowChunks + (chunk ^ (row & 7))) * 16;
  }

  // All threads; elements outside of the operand become zeros.
  __device__ void load(uint32_t stage, int depth_begin) const {
    constexpr int kRowsPerPass = kThreads / kRowChunks;
    const int chunk = static_cast<int>(threadIdx.x) % kRowChunks;
    const int first_row = static_cast<int>(threadIdx.x) / kRowChunks;
    const int chunk_begin = chunk * 8 + (kDepthContiguous ? depth_begin : 0);
    const bool chunk_valid = chunk_begin < (kDepthContiguous ? depth : size);
    const int row_begin = kDepthContiguous ? 0 : depth_begin;
    const int rows_left = (kDepthContiguous ? size : depth) - row_begin;
#pragma unroll
    for (int pass = 0; pass < kSize * kTileDepth / 8 / kThreads; ++pass) {
      const int row = first_row + pass * kRowsPerPass;
      const bool valid = chunk_valid && row < rows_left;
      const __nv_bfloat16* from = data + (row_begin + row) * stride + chunk_begin;
      copy_async(stage + place(row, chunk), valid ? from : data, valid);
    }
  }

  // 16 rows (columns) of c from `begin` by 16 of depth from 16 * step. Of the four matrices, the
  // second is the next 8 rows for the left operand, and the next 8 of depth for the right one.
  template <bool kLeft>
  __device__ static void fragment(uint32_t (&out)[4], uint32_t stage, int begin, int step,
                                  int lane) {
    const int matrix = lane / 8;
    const int size_chunk = begin / 8 + (kLeft ? matrix % 2 : matrix / 2);
    const int depth_chunk = step * 2 + (kLeft ? matrix / 2 : matrix % 2);
    if constexpr (kDepthContiguous) {
      load_matrices<false>(out, stage + place(size_chunk * 8 + lane % 8, depth_chunk));
    } else {
      load_matrices<true>(out, stage + place(depth_chunk * 8 + lane % 8, size_chunk));
    }
  }
};

template <GroupedKind kKind>
using Left = Operand<kTileM, kKind != GroupedKind::Wgrad>;
template <GroupedKind kKind>
using Right = Operand<kTileN, kKind == GroupedKind::Forward>;

template <GroupedKind kKind>
__device__ Left<kKind> left_of(const GroupedProduct& p, const GroupTile& tile) {
  const auto* a = static_cast<const __nv_bfloat16*>(p.a);
  const int m = tile.tile_m * kTileM;
  if constexpr (kKind == GroupedKind::Wgrad)
    return {a + int64_t{tile.first_row} * p.rows + m, p.rows, p.rows - m, tile.num_rows};
  else
    return {a + int64_t{tile.first_row + m} * p.depth, p.depth, tile.num_rows - m, p.depth};
}

template <GroupedKind kKind>
__device__ Right<kKind> right_of(const GroupedProduct& p, const GroupTile& tile) {
  const auto* b = static_cast<const __nv_bfloat16*>(p.b);
  const int n = tile.tile_n * kTileN;
  const int left = p.columns - n;
  const int64_t matrix = int64_t{tile.group} * p.columns * p.depth;
  if constexpr (kKind == GroupedKind::Forward)
    return {b + matrix + int64_t{n} * p.depth, p.depth, left, p.depth};
  else if constexpr (kKind == GroupedKind::Dgrad)
    return {b + matrix + n, p.columns, left, p.depth};
  else
    return {b + int64_t{tile.first_row} * p.columns + n, p.columns, left, tile.num_rows};
}

// Word j of lane i of four neighbouring lanes becomes word i of lane j.
__device__ __forceinline__ void transpose_in_quad(uint32_t (&word)[4], int lane) {
  const bool odd = lane & 1, high = lane & 2;
  // Choices, not indices: the words stay in registers.
  const uint32_t x = __shfl_xor_sync(0xffffffffu, odd ? word[0] : word[1], 1);
  const uint32_t y = __shfl_xor_sync(0xffffffffu, odd ? word[2] : word[3], 1);
  word[0] = odd ? x : word[0];
  word[1] = odd ? word[1] : x;
  word[2] = odd ? y : word[2];
  word[3] = odd ? word[3] : y;
  const uint32_t z = __shfl_xor_sync(0xffffffffu, high ? word[0] : word[2], 2);
  const uint32_t w = __shfl_xor_sync(0xffffffffu, high ? word[1] : word[3], 2);
  word[0] = high ? z : word[0];
  word[1] = high ? w : word[1];
  word[2] = high ? word[2] : z;
  word[3] = high ? word[3] : w;
}

// The warp's part of a tile of c. Sums of forward and dgrad are rounded to BF16; those of wgrad are
// added to the FP32 already there.
template <GroupedKind kKind>
__device__ void store(const GroupedProduct& p, const GroupTile& tile, const float (&sums)[4][8][4],
                      int warp_m, int warp_n, int lane) {
  constexpr bool kWgrad = kKind == GroupedKind::Wgrad;
  const int first_row = tile.tile_m * kTileM + warp_m + lane / 4;
  const int first_column = tile.tile_n * kTileN + warp_n;
  const int num_rows = kWgrad ? p.rows : tile.num_rows;
  const int64_t row_offset = kWgrad ? int64_t{tile.group} * p.rows : int64_t{tile.first_row};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // lanes hold two rows of each 16 x 8 matrix
      const int row = first_row + i * 16 + half * 8;
      const int64_t row_begin = (row_offset + row) * p.columns;
      if constexpr (kWgrad) {
        if (row >= num_rows) continue;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int column = first_column + j * 8 + lane % 4 * 2;
          if (column >= p.columns) continue;
          auto* c = reinterpret_cast<float2*>(static_cast<float*>(p.c) + row_begin + column);
          float2 value = *c;
          value.x += sums[i][j][half * 2];
          value.y += sums[i][j][half * 2 + 1];
          *c = value;
        }
      } else {
#pragma unroll
        for (int quarter = 0; quarter < 2; ++quarter) {
          uint32_t words[4];  // of four matrices; then all eight columns of one
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float* pair = &sums[i][quarter * 4 + j][half * 2];
            const __nv_bfloat162 rounded = __floats2bfloat162_rn(pair[0], pair[1]);
            words[j] = *reinterpret_cast<const uint32_t*>(&rounded);
          }
          transpose_in_quad(words, lane);
          const int column = first_column + (quarter * 4 + lane % 4) * 8;
          if (row >= num_rows || column >= p.columns) continue;
          auto* c = static_cast<__nv_bfloat16*>(p.c) + row_begin + column;
          *reinterpret_cast<uint4*>(c) = make_uint4(words[0], words[1], words[2], words[3]);
        }
      }
    }
  }
}

inline int shared_bytes(int groups) {
  return kStages * kBytesStage +
         GroupTiles<GroupedKind::Forward, kTileM, kTileN>::shared_ints(groups) * 4;
}

template <GroupedKind kKind>
__global__ void __launch_bounds__(kThreads, 1) kernel(const GroupedProduct p) {
  extern __shared__ __align__(128) uint8_t shared[];
  GroupTiles<kKind, kTileM, kTileN> tiles(p,
                                          reinterpret_cast<int*>(shared + kStages * kBytesStage));
  const uint32_t ring = shared_address(shared);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_m = warp % 2 * kWarpTile;
  const int warp_n = warp / 2 * kWarpTile;

  int index = static_cast<int>(blockIdx.x);
  if (index >= tiles.num_tiles()) return;
  GroupTile tile = tiles.tile(index);
  Left<kKind> left = left_of<kKind>(p, tile);
  Right<kKind> right = right_of<kKind>(p, tile);

  const auto load_stage = [&](int block) {
    if (block * kTileDepth < left.depth) {
      const uint32_t stage = ring + static_cast<uint32_t>(block % kStages * kBytesStage);
      left.load(stage, block * kTileDepth);
      right.load(stage + kBytesA, block * kTileDepth);
    }
    commit_copies();  // also when empty, so that every block of depth is one group
  };
  for (int block = 0; block < kStages - 1; ++block) load_stage(block);

  while (true) {
    float sums[4][8][4] = {};
    const int num_blocks = (left.depth + kTileDepth - 1) / kTileDepth;
    for (int block = 0; block < num_blocks; ++block) {
      wait_for_copies<kStages - 2>();
      __syncthreads();  // this block has arrived for all; the block before it is used by none
      load_stage(block + kStages - 1);
      const uint32_t stage_a = ring + static_cast<uint32_t>(block % kStages * kBytesStage);
      const uint32_t stage_b = stage_a + kBytesA;
      uint32_t a[2][4][4], b[2][4][4];  // of this step and of the next
      const auto load_fragments = [&](int step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          Left<kKind>::template fragment<true>(a[step % 2][i], stage_a, warp_m + i * 16, step,
                                               lane);
          Right<kKind>::template fragment<false>(b[step % 2][i], stage_b, warp_n + i * 16, step,
                                                 lane);
        }
      };
      load_fragments(0);
#pragma unroll
      for (int step = 0; step < kTileDepth / 16; ++step) {
        if (step + 1 < kTileDepth / 16) load_fragments(step + 1);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 8; ++j)
            multiply_add(sums[i][j], a[step % 2][i], b[step % 2][j / 2][j % 2 * 2],
                         b[step % 2][j / 2][j % 2 * 2 + 1]);
      }
    }

    const GroupTile done = tile;
    index += static_cast<int>(gridDim.x);
    const bool more = index < tiles.num_tiles();
    if (more) {
      tile = tiles.tile(index);
      left = left_of<kKind>(p, tile);
      right = right_of<kKind>(p, tile);
      __syncthreads();  // the ring is used by none
      for (int block = 0; block < kStages - 1; ++block) load_stage(block);
    }
    store<kKind>(p, done, sums, warp_m, warp_n, lane);
    if (!more) return;
  }
}

}  // namespace ferry::cuda::mma
