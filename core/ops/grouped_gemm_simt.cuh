#pragma once

// Grouped products without tensor cores: any float type, any sizes and alignment.

#include "core/ops/grouped_tiles.cuh"
#include "core/ops/vector_cuda.cuh"

namespace ferry::cuda::simt {

constexpr int kTile = 64;
constexpr int kTileDepth = 16;
constexpr int kThreads = 256;  // 16 x 16, each with 4 x 4 elements of c

// Where element (row, k) of a and (k, column) of b are, from the first of the group.
struct Strides {
  int64_t group_a, row_a, depth_a;  // group_a: per row before the group
  int64_t group_b, depth_b, column_b;
};

template <GroupedKind kKind>
__device__ Strides strides_of(const GroupedProduct& p) {
  const int64_t rows = p.rows, columns = p.columns, depth = p.depth;
  if constexpr (kKind == GroupedKind::Forward) return {depth, depth, 1, columns * depth, 1, depth};
  if constexpr (kKind == GroupedKind::Dgrad) return {depth, depth, 1, columns * depth, columns, 1};
  return {rows, 1, rows, columns, columns, 1};
}

template <GroupedKind kKind, class T, class C>
__global__ void __launch_bounds__(kThreads) kernel(const GroupedProduct p) {
  constexpr bool kWgrad = kKind == GroupedKind::Wgrad;
  extern __shared__ int shared_ints[];
  __shared__ float left[kTileDepth][kTile + 1], right[kTileDepth][kTile + 1];
  GroupTiles<kKind, kTile, kTile> tiles(p, shared_ints);
  const Strides strides = strides_of<kKind>(p);
  const int thread = static_cast<int>(threadIdx.x);
  const int thread_m = thread / 16, thread_n = thread % 16;

  for (int index = static_cast<int>(blockIdx.x); index < tiles.num_tiles();
       index += static_cast<int>(gridDim.x)) {
    const GroupTile tile = tiles.tile(index);
    const int first_m = tile.tile_m * kTile, first_n = tile.tile_n * kTile;
    const int rows = kWgrad ? p.rows : tile.num_rows;
    const int depth = kWgrad ? tile.num_rows : p.depth;
    const T* a = static_cast<const T*>(p.a) + tile.first_row * strides.group_a;
    const T* b =
        static_cast<const T*>(p.b) + (kWgrad ? tile.first_row : tile.group) * strides.group_b;
    float sums[4][4] = {};
    for (int begin = 0; begin < depth; begin += kTileDepth) {
      __syncthreads();
      for (int i = thread; i < kTile * kTileDepth; i += kThreads) {
        const int k = i % kTileDepth, at = i / kTileDepth;
        const bool in_depth = begin + k < depth;
        const bool in_a = in_depth && first_m + at < rows;
        const bool in_b = in_depth && first_n + at < p.columns;
        left[k][at] =
            in_a ? to_float(a[(first_m + at) * strides.row_a + (begin + k) * strides.depth_a])
                 : 0.0f;
        right[k][at] =
            in_b ? to_float(b[(begin + k) * strides.depth_b + (first_n + at) * strides.column_b])
                 : 0.0f;
      }
      __syncthreads();
      for (int k = 0; k < kTileDepth; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            sums[i][j] += left[k][thread_m + i * 16] * right[k][thread_n + j * 16];
    }
    C* c = static_cast<C*>(p.c) +
           (kWgrad ? int64_t{tile.group} * p.rows : int64_t{tile.first_row}) * p.columns;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = first_m + thread_m + i * 16, column = first_n + thread_n + j * 16;
        if (row >= rows || column >= p.columns) continue;
        C& out = c[int64_t{row} * p.columns + column];
        if constexpr (kWgrad) {
          out += sums[i][j];
        } else {
          out = from_float<C>(sums[i][j]);
        }
      }
  }
}

}  // namespace ferry::cuda::simt
