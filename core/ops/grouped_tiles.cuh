#pragma once

// Which output tiles a grouped product has. The numbers of rows are known on the device only, so
// every block finds the tiles by itself: it sums the tiles of all groups in shared memory and takes
// tile blockIdx.x, blockIdx.x + gridDim.x, ... of all groups together.

#include <cstdint>

namespace ferry::cuda {

enum class GroupedKind { Forward, Dgrad, Wgrad };

// A grouped product c = a * b. Forward and dgrad: group e has its rows of c and a, and matrix e of
// b. Wgrad: matrix e of c, and its rows of a and b, over which is summed.
struct GroupedProduct {
  const int* offsets = nullptr;  // [groups + 1], on the device
  int groups = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  int rows = 0;     // of c: all groups together (forward, dgrad); of each matrix (wgrad)
  int columns = 0;  // of c
  int depth = 0;    // length of the sums (forward, dgrad)
};

struct GroupTile {
  int group;
  int first_row;  // of the group
  int num_rows;   // of the group
  int tile_m;     // along the rows of c of this group
  int tile_n;     // along the columns of c
};

template <GroupedKind kKind, int kTileM, int kTileN>
class GroupTiles {
 public:
  __host__ __device__ static int shared_ints(int groups) { return 2 * (groups + 1); }

  /// All threads of the block; `shared` holds shared_ints(groups). Ends with a barrier.
  __device__ GroupTiles(const GroupedProduct& product, int* shared)
      : offsets_(shared),
        first_(shared + product.groups + 1),
        tiles_n_((product.columns + kTileN - 1) / kTileN),
        matrix_tiles_m_((product.rows + kTileM - 1) / kTileM) {
    const int groups = product.groups;
    for (int e = static_cast<int>(threadIdx.x); e <= groups; e += static_cast<int>(blockDim.x))
      offsets_[e] = product.offsets[e];
    __syncthreads();
    if (threadIdx.x < 32) {
      const int lane = static_cast<int>(threadIdx.x);
      int before = 0;
      for (int begin = 0; begin < groups; begin += 32) {
        const int e = begin + lane;
        int sum = e < groups ? tiles_m(offsets_[e + 1] - offsets_[e]) * tiles_n_ : 0;
        for (int distance = 1; distance < 32; distance *= 2) {
          const int other = __shfl_up_sync(0xffffffffu, sum, distance);
          if (lane >= distance) sum += other;
        }
        if (e < groups) first_[e + 1] = before + sum;
        before += __shfl_sync(0xffffffffu, sum, 31);
      }
      if (lane == 0) first_[0] = 0;
    }
    __syncthreads();
    num_tiles_ = first_[groups];
  }

  __device__ int num_tiles() const { return num_tiles_; }

  /// Tiles must be asked for in rising order.
  __device__ GroupTile tile(int index) {
    while (index >= first_[group_ + 1]) ++group_;
    GroupTile tile;
    tile.group = group_;
    tile.first_row = offsets_[group_];
    tile.num_rows = offsets_[group_ + 1] - tile.first_row;
    // Blocks that run at the same time share rows of a and columns of b in the L2 cache: tiles go
    // down bands of kBand tiles before they go right.
    constexpr int kBand = 16;
    const int in_group = index - first_[group_];
    const int band = in_group / (kBand * tiles_n_);
    const int in_band = in_group - band * kBand * tiles_n_;
    const int height = min(kBand, tiles_m(tile.num_rows) - band * kBand);
    tile.tile_n = in_band / height;
    tile.tile_m = band * kBand + in_band - tile.tile_n * height;
    return tile;
  }

 private:
  __device__ int tiles_m(int num_rows) const {
    if constexpr (kKind == GroupedKind::Wgrad) return num_rows > 0 ? matrix_tiles_m_ : 0;
    return (num_rows + kTileM - 1) / kTileM;
  }

  int* offsets_;
  int* first_;  // tiles of the groups before
  int tiles_n_;
  int matrix_tiles_m_;
  int num_tiles_ = 0;
  int group_ = 0;
};

}  // namespace ferry::cuda
