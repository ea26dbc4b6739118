#include "app/data/sample_order.h"

#include "app/data/numpy_shuffle.h"
#include "tests/app/data/data_fixtures.h"

#include <numeric>
#include <random>

namespace ferry {
namespace {

using testing::expect_error;

constexpr std::array<int32_t, 8> kLengths{5, 3, 9, 4, 7, 2, 8, 6};  // 44 tokens

struct Golden {
  int64_t num_samples, num_epochs, separate_from;
  std::vector<int32_t> documents;
  std::vector<SamplePosition> positions;
  std::vector<int64_t> shuffle;
};

// seq 8, seed 1234.
const Golden kGolden[] = {
    {5,
     1,
     -1,
     {2, 1, 6, 0, 4, 5, 3, 7},
     {{0, 0}, {0, 8}, {2, 4}, {3, 4}, {5, 0}, {7, 2}},
     {2, 0, 4, 3, 1}},
    {12,
     3,
     10,
     {5, 3, 0, 4, 6, 2, 2, 7, 1, 1, 0, 4, 5, 6, 3, 7, 5, 1, 3, 4, 0, 7, 6, 2},
     {{0, 0},
      {2, 2},
      {3, 5},
      {4, 6},
      {5, 6},
      {6, 5},
      {7, 4},
      {10, 0},
      {11, 3},
      {13, 2},
      {14, 2},
      {16, 0},
      {18, 3},
      {20, 0},
      {21, 3},
      {22, 5},
      {23, 5}},
     {7, 4, 1, 5, 3, 9, 2, 8, 6, 0, 15, 11, 10, 14, 13, 12}},
    {20,
     4,
     -1,
     {7, 2, 4, 1, 2, 0, 3, 7, 6, 5, 2, 4, 0, 2, 5, 1,
      6, 6, 5, 0, 3, 3, 1, 1, 7, 0, 4, 4, 5, 6, 3, 7},
     {{0, 0},  {1, 2},  {2, 1},  {3, 2},  {4, 7},  {6, 1},  {7, 5},  {8, 7},
      {10, 5}, {11, 4}, {13, 0}, {13, 8}, {16, 2}, {17, 2}, {19, 0}, {20, 3},
      {23, 0}, {24, 5}, {26, 2}, {27, 3}, {29, 2}, {30, 2}},
     {8, 20, 14, 9, 6, 0, 4, 5, 13, 18, 7, 15, 17, 10, 16, 3, 11, 1, 12, 19, 2}},
};

TEST(SampleOrder, GoldenRows) {
  for (const Golden& golden : kGolden) {
    SCOPED_TRACE(golden.num_samples);
    const SampleOrder order = make_sample_order(kLengths, {0, 8}, 8, golden.num_samples, 1234);
    EXPECT_EQ(order.num_epochs, golden.num_epochs);
    EXPECT_EQ(order.separate_from, golden.separate_from);
    EXPECT_EQ(order.documents, golden.documents);
    EXPECT_TRUE(order.positions == golden.positions);
    EXPECT_EQ(order.shuffle, golden.shuffle);
  }
}

TEST(SampleOrder, OneEpochWithoutANumberOfSamples) {
  const SampleOrder order = make_sample_order(kLengths, {0, 8}, 8, 0, 1234);
  EXPECT_EQ(order.num_epochs, 1);
  EXPECT_EQ(order.documents, kGolden[0].documents);
  EXPECT_EQ(order.shuffle, kGolden[0].shuffle);
}

TEST(SampleOrder, RangeUsesGlobalSequenceNumbers) {
  const SampleOrder order = make_sample_order(kLengths, {2, 5}, 4, 3, 1);
  std::vector<int32_t> documents = order.documents;
  std::sort(documents.begin(), documents.end());
  EXPECT_THAT(documents, ::testing::ElementsAre(2, 3, 4));
  EXPECT_EQ(order.size(), (9 + 4 + 7 - 1) / 4);
}

TEST(SampleOrder, EmptySequencesAreStridden) {
  const std::array<int32_t, 5> lengths{0, 3, 0, 0, 4};
  const SampleOrder order = make_sample_order(lengths, {0, 5}, 6, 1, 3);
  EXPECT_EQ(order.size(), 1);
  EXPECT_EQ(lengths[order.documents[order.positions[1].position]] - 1, order.positions[1].offset);
}

TEST(SampleOrder, RefusesSeedsBeyond32Bits) {
  expect_error(ExitCode::Usage, {"seed 4294967296", "2^32"}, [] {
    make_sample_order(kLengths, {0, 8}, 8, 1, uint64_t{1} << 32);
  });
}

TEST(NumpyShuffle, GoldenStreamAndPermutation) {
  std::mt19937 rng(1234);
  EXPECT_EQ(rng(), 822569775u);
  EXPECT_EQ(rng(), 2137449171u);
  EXPECT_EQ(rng(), 2671936806u);
  rng.seed(1234);
  std::array<int, 10> values;
  std::iota(values.begin(), values.end(), 0);
  numpy_shuffle(rng, std::span<int>(values));
  EXPECT_THAT(values, ::testing::ElementsAre(7, 2, 9, 1, 0, 8, 4, 5, 6, 3));
}

TEST(NumpyShuffle, DrawsTwoWordsHighFirstAbove32Bits) {
  std::mt19937 rng(1234);
  EXPECT_EQ(draw_up_to(rng, ~uint64_t{0}), uint64_t{822569775} << 32 | 2137449171u);
  rng.seed(1234);
  EXPECT_EQ(draw_up_to(rng, 0xffffffffull), 822569775u);
}

TEST(Split, GoldenBounds) {
  using Ranges = std::array<SequenceRange, 3>;
  EXPECT_EQ(split_sequences("969,30,1", 1000), (Ranges{{{0, 969}, {969, 999}, {999, 1000}}}));
  EXPECT_EQ(split_sequences("8,1,1", 10), (Ranges{{{0, 8}, {8, 9}, {9, 10}}}));
  EXPECT_EQ(split_sequences("100", 7), (Ranges{{{0, 7}, {7, 7}, {7, 7}}}));
  EXPECT_EQ(split_sequences(".9 / .1", 10), (Ranges{{{0, 9}, {9, 10}, {10, 10}}}));
}

TEST(Split, RoundsHalfToEven) {
  EXPECT_EQ(split_sequences("1,1", 5)[0].end, 2);  // 2.5
  EXPECT_EQ(split_sequences("1,1", 7)[0].end, 4);  // 3.5
}

TEST(Split, RefusesWhatIsNotAWeighting) {
  for (const char* split : {"", "train", "0,0,0", "1,2,3,4"}) {
    expect_error(ExitCode::Usage, {"data.split", split, "969,30,1"},
                 [&] { split_sequences(split, 10); });
  }
  expect_error(ExitCode::Usage, {"'1.2.3' is not a number"}, [] { split_sequences("1.2.3", 10); });
}

}  // namespace
}  // namespace ferry
