#include "app/batch_feed.h"

#include <gtest/gtest.h>

#include "tests/support/devices.h"

namespace ferry {
namespace {

// Sample i is i * 100, i * 100 + 1, ...
class Counting final : public TokenDataset {
 public:
  int64_t size() const override { return 64; }
  int64_t seq() const override { return 4; }
  void sample(int64_t index, std::span<int32_t> out) const override {
    for (size_t t = 0; t < out.size(); ++t)
      out[t] = static_cast<int32_t>(index * 100) + static_cast<int32_t>(t);
  }
  uint64_t fingerprint() const override { return 1; }
  std::string describe() const override { return "counting"; }
};

class BatchFeedTest : public testing::CpuTest {
 protected:
  static LoaderConfig loader_config(int64_t rank) {
    LoaderConfig config;
    config.micro = 2;
    config.global = 8;
    config.dp_rank = rank;
    config.dp_size = 2;
    return config;
  }
};

TEST_F(BatchFeedTest, CopiesTokensLabelsAndMask) {
  Loader loader(std::make_shared<Counting>(), loader_config(1));
  BatchFeed feed(stream(), loader);
  const Batch batch = feed.next(0);
  EXPECT_EQ(batch.batch, 2);
  EXPECT_EQ(batch.seq, 4);
  EXPECT_EQ(read_back<int32_t>(stream(), batch.tokens),
            (std::vector<int32_t>{200, 201, 202, 203, 300, 301, 302, 303}));
  EXPECT_EQ(read_back<int32_t>(stream(), batch.labels),
            (std::vector<int32_t>{201, 202, 203, 204, 301, 302, 303, 304}));
  EXPECT_EQ(read_back<float>(stream(), batch.loss_mask), std::vector<float>(8, 1.0f));
  EXPECT_EQ(batch.num_loss_tokens, 8);
}

// The random numbers of a token depend on its place in the global batch, not on the ranks.
TEST_F(BatchFeedTest, KnowsThePlaceInTheGlobalBatch) {
  for (const int64_t rank : {0, 1}) {
    Loader loader(std::make_shared<Counting>(), loader_config(rank));
    BatchFeed feed(stream(), loader);
    for (int64_t step = 0; step < 3; ++step) {
      const int64_t first_sample = loader.consumed_samples();
      EXPECT_EQ(first_sample, step * 8);
      EXPECT_EQ(feed.next(first_sample).first_token, rank * 2 * 4);
      EXPECT_EQ(feed.next(first_sample).first_token, (4 + rank * 2) * 4);
    }
  }
}

TEST_F(BatchFeedTest, CountsOnlyTheTokensOfTheLoss) {
  LoaderConfig config = loader_config(0);
  config.pad = 102;  // a label of sample 1, and its input
  Loader loader(std::make_shared<Counting>(), config);
  BatchFeed feed(stream(), loader);
  const Batch batch = feed.next(0);
  EXPECT_EQ(batch.num_loss_tokens, 7);
  double sum = 0;
  for (const float weight : read_back<float>(stream(), batch.loss_mask)) sum += weight;
  EXPECT_EQ(sum, 7);
}

}  // namespace
}  // namespace ferry
