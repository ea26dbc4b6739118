#include "app/data/blend_order.h"

#include "tests/app/data/data_fixtures.h"

#include <map>

namespace ferry {
namespace {

using testing::expect_error;

TEST(BlendOrder, GoldenOrder) {
  const std::vector<double> weights{.5, .3, .2};
  const BlendOrder order = make_blend_order(weights, 12);
  EXPECT_THAT(order.part, ::testing::ElementsAre(0, 1, 2, 0, 1, 0, 2, 0, 1, 0, 0, 1));
  EXPECT_THAT(order.sample, ::testing::ElementsAre(0, 0, 0, 1, 1, 2, 1, 3, 2, 4, 5, 3));
}

TEST(BlendOrder, SizesRoundUpAndGetASurplus) {
  const std::vector<double> weights{.5, .3, .2};
  EXPECT_THAT(blend_sizes(weights, 12), ::testing::ElementsAre(6, 4, 3));
  EXPECT_EQ(blend_build_size(6), 7);
  EXPECT_EQ(blend_build_size(200), 201);
  EXPECT_EQ(blend_build_size(201), 203);
}

TEST(BlendOrder, ExhaustiveOrderUsesEverySampleOnce) {
  const std::vector<int64_t> sizes{3, 5, 1};
  const BlendOrder order = make_exhaustive_blend_order(sizes);
  ASSERT_EQ(order.size(), 9);
  std::map<int, std::vector<int64_t>> samples;
  for (int64_t i = 0; i < 9; ++i) samples[order.part[i]].push_back(order.sample[i]);
  EXPECT_THAT(samples[0], ::testing::ElementsAre(0, 1, 2));
  EXPECT_THAT(samples[1], ::testing::ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(samples[2], ::testing::ElementsAre(0));
}

TEST(ParseBlend, WeightsOrPaths) {
  const std::vector<std::string> weighted{"3", "a", "1", "b"};
  const BlendSpec blend = parse_blend(weighted);
  EXPECT_THAT(blend.paths, ::testing::ElementsAre("a", "b"));
  EXPECT_THAT(blend.weights, ::testing::ElementsAre(.75, .25));

  const std::vector<std::string> plain{"a", "b"}, odd{"1", "a", "2"};
  EXPECT_THAT(parse_blend(plain).paths, ::testing::ElementsAre("a", "b"));
  EXPECT_THAT(parse_blend(plain).weights, ::testing::IsEmpty());
  EXPECT_THAT(parse_blend(odd).paths, ::testing::ElementsAre("1", "a", "2"));
}

TEST(ParseBlend, RefusesWeightsThatAreNotPositive) {
  for (const char* weight : {"0", "-1", "inf", "nan"}) {
    const std::vector<std::string> entries{weight, "a.bin"};
    expect_error(ExitCode::Usage, {weight, "a.bin", "positive"}, [&] { parse_blend(entries); });
  }
}

}  // namespace
}  // namespace ferry
