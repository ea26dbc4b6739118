#include "checkpoint/slice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <utility>
#include <vector>

namespace ferry {
namespace {

using ::testing::HasSubstr;

Box box(Shape global, Shape offset, Shape extent) { return {global, offset, extent}; }

TEST(Box, DefectsAreNamed) {
  EXPECT_EQ(box_defect(box({4, 6}, {1, 2}, {3, 4})), "");
  EXPECT_EQ(box_defect(box({4}, {4}, {0})), "");
  EXPECT_THAT(box_defect(box({}, {}, {})), HasSubstr("at least one dim"));
  EXPECT_THAT(box_defect(box({4, 6}, {1}, {3, 4})), HasSubstr("do not have the 2 dims"));
  EXPECT_THAT(box_defect(box({4, 6}, {2, 2}, {3, 4})), HasSubstr("dim 0: 2 + 3 exceeds 4"));
  const int64_t huge = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(box_defect(box({4}, {huge}, {2})), HasSubstr("exceeds 4"));
}

TEST(Box, Intersection) {
  const Box a = box({10, 10}, {2, 0}, {4, 10}), b = box({10, 10}, {4, 5}, {6, 3});
  EXPECT_EQ(intersect(a, b), box({10, 10}, {4, 5}, {2, 3}));
  EXPECT_EQ(intersect(a, box({10, 10}, {6, 0}, {4, 10})).numel(), 0);
  EXPECT_EQ(intersect(a, box({10, 10}, {8, 0}, {2, 10})).numel(), 0);
}

using Piece = std::array<int64_t, 3>;

std::vector<Piece> runs(const Box& part, const Box& a, const Box& b) {
  std::vector<Piece> all;
  for_each_run(part, a, b, [&](int64_t from, int64_t to, int64_t count) {
    all.push_back({from, to, count});
  });
  return all;
}

TEST(Box, RunsMergeTheDimsThatBothHoldWhole) {
  const Box whole = whole_box({4, 3, 5});
  EXPECT_EQ(runs(whole, whole, whole), (std::vector<Piece>{{0, 0, 60}}));
  const Box rows = box({4, 3, 5}, {1, 0, 0}, {2, 3, 5});
  EXPECT_EQ(runs(rows, whole, rows), (std::vector<Piece>{{15, 0, 30}}));
  const Box middle = box({4, 3, 5}, {1, 1, 0}, {2, 2, 5});
  EXPECT_EQ(runs(middle, whole, middle), (std::vector<Piece>{{20, 0, 10}, {35, 10, 10}}));
  const Box corner = box({4, 3, 5}, {3, 1, 3}, {1, 2, 2});
  EXPECT_EQ(runs(corner, whole, corner), (std::vector<Piece>{{53, 0, 2}, {58, 2, 2}}));
  EXPECT_TRUE(runs(box({4, 3, 5}, {1, 1, 1}, {0, 1, 1}), whole, whole).empty());
}

TEST(Tiling, GapsOverlapsAndStrangersAreFound) {
  const Shape global{4, 6};
  const Box top = box(global, {0, 0}, {2, 6}), left = box(global, {2, 0}, {2, 3}),
            right = box(global, {2, 3}, {2, 3});
  EXPECT_EQ(tiling_defect(global, std::vector<Box>{right, top, left}), "");
  EXPECT_THAT(tiling_defect(global, std::vector<Box>{top, left}), HasSubstr("cover 18 of 24"));
  EXPECT_THAT(tiling_defect(global, std::vector<Box>{}), HasSubstr("cover 0 of 24"));
  EXPECT_THAT(tiling_defect(global, std::vector<Box>{top, left, left}), HasSubstr("overlap"));
  // The right number of elements, but one twice and one never.
  const Box shifted = box(global, {2, 2}, {2, 3});
  EXPECT_EQ(tiling_defect(global, std::vector<Box>{top, left, shifted}),
            "slices [2:4, 0:3] of [4, 6] and [2:4, 2:5] of [4, 6] overlap");
  EXPECT_THAT(tiling_defect(global, std::vector<Box>{box({4, 5}, {0, 0}, {4, 5})}),
              HasSubstr("of shape [4, 5], not [4, 6]"));
  EXPECT_THAT(tiling_defect(global, std::vector<Box>{top, box(global, {4, 0}, {0, 6})}),
              HasSubstr("empty"));
}

TEST(Names, PartsArePlain) {
  for (const char* name : {"a", "model/layers/7/moe/experts/fc1/weight", "A-b_c.d/0"}) {
    EXPECT_EQ(name_defect(name), "") << name;
  }
  for (const char* name :
       {"", "/a", "a/", "a//b", "a/../b", ".", "a b", "a\nb", "a@0", "\xc3\xa4"}) {
    EXPECT_NE(name_defect(name), "") << name;
  }
}

/// What for_each_run visits of the elements [begin, end) of a, one by one.
std::vector<std::pair<int64_t, int64_t>> elements_within(const Box& part, const Box& a,
                                                         const Box& b, int64_t begin, int64_t end) {
  std::vector<std::pair<int64_t, int64_t>> elements;
  for_each_run(part, a, b, [&](int64_t in_a, int64_t in_b, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      if (in_a + i >= begin && in_a + i < end) elements.push_back({in_a + i, in_b + i});
  });
  return elements;
}

TEST(Slice, RunsWithinARange) {
  const Shape global{5, 4, 6};
  const std::vector<Box> boxes = {whole_box(global),
                                  {global, {1, 0, 0}, {3, 4, 6}},
                                  {global, {0, 1, 0}, {5, 2, 6}},
                                  {global, {2, 1, 3}, {1, 3, 2}},
                                  {global, {4, 3, 5}, {1, 1, 1}}};
  for (const Box& a : boxes) {
    for (const Box& b : boxes) {
      const Box part = intersect(a, b);
      for (int64_t begin = 0; begin < a.numel(); ++begin) {
        for (int64_t end = begin; end <= a.numel(); end += 1 + end % 5) {
          std::vector<std::pair<int64_t, int64_t>> elements;
          for_each_run_within(part, a, b, begin, end, [&](int64_t x, int64_t y, int64_t count) {
            for (int64_t i = 0; i < count; ++i) elements.push_back({x + i, y + i});
          });
          ASSERT_EQ(elements, elements_within(part, a, b, begin, end))
              << to_string(a) << " and " << to_string(b) << ", " << begin << " to " << end;
        }
      }
    }
  }
}

}  // namespace
}  // namespace ferry
