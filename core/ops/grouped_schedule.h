#pragma once

// Which tiles of a grouped product are made together, and in which order: a table of formulas that
// needs no GPU. A tile is 128 x 256 of c. Two blocks (a cluster) take a unit of two tiles at a
// time: one below the other, which share the right operand; of an odd last row of tiles two beside
// each other, which share the left one. So both blocks always load half of what they share for
// both, and no row of tiles is made in vain; a second tile beyond the last column is.
//
// Kernels call these constexpr functions as the host does.

#include <cstdint>

namespace ferry::grouped {

constexpr int kTileRows = 128;
constexpr int kTileColumns = 256;
constexpr int kTileDepth = 64;
/// Pairs of rows of tiles that are made before the next columns: what runs at the same time shares
/// left and right operands in the L2 cache.
constexpr int kBandPairs = 8;

constexpr int tiles_of(int size, int tile) { return (size + tile - 1) / tile; }

/// Units of a group of tiles_m x tiles_n tiles.
constexpr int num_units(int tiles_m, int tiles_n) {
  return tiles_m / 2 * tiles_n + tiles_m % 2 * ((tiles_n + 1) / 2);
}

/// Which of `total` units of wgrad, the longest sums first, is made at a turn: the longest and the
/// shortest that are left, in turns. A long sum is a matter of arithmetic and a short one of
/// memory, so that both are busy all the time.
constexpr int from_both_ends(int turn, int total) {
  return turn % 2 == 0 ? turn / 2 : total - 1 - turn / 2;
}

/// Whether that order is worth it: for groups of equal lengths it only has the operands of two
/// groups in use instead of those of one.
constexpr bool lengths_differ(int longest, int groups, int num_rows) {
  return 4 * std::int64_t{longest} * groups > 5 * std::int64_t{num_rows};
}

/// Whether it may be used for groups of `mean_rows` in the mean, whose operands have `columns`
/// together: those of the two groups at the ends have to fit in the L2 cache. Else they come from
/// memory more often, and the longest units first are faster.
constexpr bool takes_from_both_ends(std::int64_t mean_rows, std::int64_t columns) {
  constexpr std::int64_t kBytesCached = std::int64_t{40} << 20;
  return 2 * mean_rows * columns * 2 <= kBytesCached;
}

struct Place {
  int tile_m;
  int tile_n;         // tiles_n or more: there is no such tile
  bool side_by_side;  // the two tiles of the unit share the left operand
};

/// The tile of block `rank` (0 or 1) of the cluster in unit `unit` of a group.
constexpr Place place_of(int unit, int tiles_m, int tiles_n, int rank) {
  const int pairs = tiles_m / 2;
  if (unit >= pairs * tiles_n) return {tiles_m - 1, 2 * (unit - pairs * tiles_n) + rank, true};
  const int band = unit / (kBandPairs * tiles_n);
  const int in_band = unit - band * kBandPairs * tiles_n;
  const int left = pairs - band * kBandPairs;
  const int height = left < kBandPairs ? left : kBandPairs;
  const int tile_n = in_band / height;
  return {2 * (band * kBandPairs + in_band - tile_n * height) + rank, tile_n, false};
}

}  // namespace ferry::grouped
