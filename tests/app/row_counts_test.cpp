#include "app/row_counts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "core/check.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> names_of(const std::vector<RowCounts>& all) {
  std::vector<std::string> names;
  for (const RowCounts& rows : all) names.push_back(rows.distribution);
  return names;
}

const RowCounts& find(const std::vector<RowCounts>& all, const std::string& name) {
  for (const RowCounts& rows : all)
    if (rows.distribution == name) return rows;
  throw std::out_of_range(name);
}

TEST(RowCounts, AllHaveTheSameNumberOfRows) {
  for (const int64_t experts : {2, 3, 8, 64, 128})
    for (const int64_t rows : {1, 7, 256})
      for (const uint64_t seed : {1, 2, 3})
        for (const RowCounts& made : distribute_rows(experts, rows, seed, rows == 256)) {
          SCOPED_TRACE(concat(made.distribution, ", ", experts, " x ", rows, ", seed ", seed));
          ASSERT_EQ(made.counts.size(), static_cast<size_t>(experts));
          EXPECT_GE(*std::min_element(made.counts.begin(), made.counts.end()), 0);
          EXPECT_EQ(std::accumulate(made.counts.begin(), made.counts.end(), int64_t{0}),
                    experts * rows);
        }
}

TEST(RowCounts, UnevenHasTwiceTheMeanAtMost) {
  for (const int64_t experts : {2, 8, 64})
    EXPECT_EQ(find(distribute_rows(experts, 100, 5, false), "uneven").max_over_mean(), 2);
  const auto counts = find(distribute_rows(64, 1000, 5, false), "uneven").counts;
  EXPECT_GT(std::set<int64_t>(counts.begin(), counts.end()).size(), 40u);
}

TEST(RowCounts, PowerLawFallsWithTheRank) {
  auto counts = find(distribute_rows(4, 2500, 5, false), "power law").counts;
  std::sort(counts.rbegin(), counts.rend());
  EXPECT_THAT(counts, ElementsAre(4800, 2400, 1600, 1200));  // 12 : 6 : 4 : 3 of 10,000
}

TEST(RowCounts, OneExpertHasThemAll) {
  const RowCounts rows = find(distribute_rows(8, 100, 5, false), "one expert");
  EXPECT_EQ(rows.max_over_mean(), 8);
  EXPECT_EQ(std::count(rows.counts.begin(), rows.counts.end(), 0), 7);
}

TEST(RowCounts, EdgeMixesTheEndsOfTiles) {
  for (const int64_t experts : {8, 64}) {
    const auto counts = find(distribute_rows(experts, 512, 5, true), "edge").counts;
    for (const int64_t edge : {0, 1, 63, 64, 65, 127, 129})
      EXPECT_EQ(std::count(counts.begin(), counts.end(), edge), experts == 8 ? 1 : 4) << edge;
    EXPECT_GT(*std::max_element(counts.begin(), counts.end()), 512);
  }
}

TEST(RowCounts, EdgeSaysHowManyRowsItNeeds) {
  try {
    distribute_rows(8, 16, 5, true);
    FAIL() << "16 rows for each of 8 experts are too few";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Usage);
    EXPECT_THAT(error.what(), HasSubstr("--edge needs 449 rows for 8 experts; there are 128"));
    EXPECT_THAT(error.what(), HasSubstr("try : --rows-per-expert 57 or more"));
  }
  EXPECT_NO_THROW(distribute_rows(8, 57, 5, true));
}

TEST(RowCounts, OneExpertIsAlwaysEven) {
  const auto all = distribute_rows(1, 100, 5, true);
  EXPECT_THAT(names_of(all), ElementsAre("even"));
  EXPECT_THAT(all[0].counts, ElementsAre(100));
}

TEST(RowCounts, FollowTheSeed) {
  const auto counts = [](uint64_t seed) {
    return find(distribute_rows(64, 1000, seed, false), "uneven").counts;
  };
  EXPECT_EQ(counts(1), counts(1));
  EXPECT_NE(counts(1), counts(2));
  EXPECT_THAT(names_of(distribute_rows(8, 100, 1, true)),
              ElementsAre("even", "uneven", "power law", "one expert", "edge"));
}

}  // namespace
}  // namespace ferry
