#include "core/ops/grouped_schedule.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

namespace ferry::grouped {
namespace {

TEST(GroupedSchedule, EveryTileIsMadeOnce) {
  for (int tiles_m = 0; tiles_m <= 40; ++tiles_m) {
    for (int tiles_n = 1; tiles_n <= 9; ++tiles_n) {
      SCOPED_TRACE(testing::Message() << tiles_m << " x " << tiles_n);
      std::map<std::pair<int, int>, int> made;
      const int units = num_units(tiles_m, tiles_n);
      int beyond = 0;
      for (int unit = 0; unit < units; ++unit) {
        for (int rank = 0; rank < 2; ++rank) {
          const Place place = place_of(unit, tiles_m, tiles_n, rank);
          ASSERT_GE(place.tile_m, 0);
          ASSERT_LT(place.tile_m, tiles_m);
          ASSERT_GE(place.tile_n, 0);
          if (place.tile_n < tiles_n)
            ++made[{place.tile_m, place.tile_n}];
          else
            ++beyond;
        }
      }
      EXPECT_EQ(made.size(), static_cast<size_t>(tiles_m) * static_cast<size_t>(tiles_n));
      for (const auto& [tile, times] : made)
        EXPECT_EQ(times, 1) << tile.first << ' ' << tile.second;
      // One at most, of an odd last row with an odd number of columns.
      EXPECT_EQ(beyond, tiles_m % 2 * (tiles_n % 2));
    }
  }
}

TEST(GroupedSchedule, TheTwoTilesOfAUnitShareAnOperand) {
  for (int tiles_m = 1; tiles_m <= 33; ++tiles_m) {
    const int tiles_n = 5;
    for (int unit = 0; unit < num_units(tiles_m, tiles_n); ++unit) {
      const Place a = place_of(unit, tiles_m, tiles_n, 0), b = place_of(unit, tiles_m, tiles_n, 1);
      ASSERT_EQ(a.side_by_side, b.side_by_side);
      EXPECT_EQ(b.tile_m - a.tile_m, a.side_by_side ? 0 : 1);
      EXPECT_EQ(b.tile_n - a.tile_n, a.side_by_side ? 1 : 0);
      EXPECT_EQ(a.side_by_side, tiles_m % 2 == 1 && a.tile_m == tiles_m - 1);
    }
  }
}

// Neighbouring units stay within a band of rows of tiles, column after column.
TEST(GroupedSchedule, GoesDownABandBeforeItGoesRight) {
  const int tiles_m = 40, tiles_n = 4;
  int unit = 0;
  for (int band = 0; band * 2 * kBandPairs < tiles_m; ++band)
    for (int n = 0; n < tiles_n; ++n)
      for (int pair = 0; pair < kBandPairs && band * kBandPairs + pair < tiles_m / 2; ++pair) {
        const Place place = place_of(unit++, tiles_m, tiles_n, 0);
        EXPECT_EQ(place.tile_m, 2 * (band * kBandPairs + pair));
        EXPECT_EQ(place.tile_n, n);
      }
  EXPECT_EQ(unit, num_units(tiles_m, tiles_n));
}

TEST(GroupedSchedule, TakesUnitsFromBothEnds) {
  EXPECT_EQ(from_both_ends(0, 1), 0);
  const int order_of_five[] = {0, 4, 1, 3, 2};
  for (int turn = 0; turn < 5; ++turn) EXPECT_EQ(from_both_ends(turn, 5), order_of_five[turn]);
  const int order_of_six[] = {0, 5, 1, 4, 2, 3};
  for (int turn = 0; turn < 6; ++turn) EXPECT_EQ(from_both_ends(turn, 6), order_of_six[turn]);
}

TEST(GroupedSchedule, LengthsDifferFromAQuarterAboveTheMean) {
  EXPECT_FALSE(lengths_differ(1024, 64, 64 * 1024));
  EXPECT_FALSE(lengths_differ(1280, 64, 64 * 1024));
  EXPECT_TRUE(lengths_differ(1281, 64, 64 * 1024));
  EXPECT_TRUE(lengths_differ(1 << 30, 1 << 10, 1 << 30));
  EXPECT_FALSE(lengths_differ(0, 64, 0));
}

TEST(GroupedSchedule, TakesFromBothEndsWhatTheCacheHolds) {
  EXPECT_TRUE(takes_from_both_ends(1024, 2048 + 2048));
  EXPECT_TRUE(takes_from_both_ends(2560, 2048 + 2048));  // 40 MiB of two groups
  EXPECT_FALSE(takes_from_both_ends(2561, 2048 + 2048));
  EXPECT_FALSE(takes_from_both_ends(4096, 28672 + 4096));
  EXPECT_FALSE(takes_from_both_ends(int64_t{1} << 31, int64_t{1} << 20));
}

}  // namespace
}  // namespace ferry::grouped
