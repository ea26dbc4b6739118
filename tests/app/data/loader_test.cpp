#include "app/data/loader.h"

#include "tests/app/data/data_fixtures.h"

namespace ferry {
namespace {

using testing::expect_error;

// Token t of sample i is 100 i + t; sample `bad` throws.
class CountingDataset : public TokenDataset {
 public:
  explicit CountingDataset(int64_t size, int64_t bad = -1) : size_(size), bad_(bad) {}
  int64_t size() const override { return size_; }
  int64_t seq() const override { return 3; }
  void sample(int64_t index, std::span<int32_t> out) const override {
    if (index == bad_) fail(ExitCode::Data, "sample ", index, " is damaged");
    for (size_t t = 0; t < out.size(); ++t) out[t] = static_cast<int32_t>(100 * index + t);
  }
  uint64_t fingerprint() const override { return 0; }
  std::string describe() const override { return "counting"; }

 private:
  int64_t size_, bad_;
};

TEST(Loader, LabelsAreTheNextTokens) {
  Loader loader(std::make_shared<CountingDataset>(8), {.micro = 2, .global = 4});
  const Microbatch microbatch = loader.next();
  EXPECT_EQ(microbatch.batch, 2);
  EXPECT_EQ(microbatch.seq, 3);
  EXPECT_THAT(microbatch.tokens, ::testing::ElementsAre(0, 1, 2, 100, 101, 102));
  EXPECT_THAT(microbatch.labels, ::testing::ElementsAre(1, 2, 3, 101, 102, 103));
  EXPECT_THAT(microbatch.loss_mask, ::testing::Each(1.0f));
  EXPECT_THAT(microbatch.sample_ids, ::testing::ElementsAre(0, 1));
  EXPECT_EQ(loader.microbatches_per_step(), 2);
  EXPECT_EQ(loader.consumed_samples(), 2);
}

TEST(Loader, RanksShareEachMicroStep) {
  const auto dataset = std::make_shared<CountingDataset>(24);
  for (int64_t rank = 0; rank < 3; ++rank) {
    Loader loader(dataset,
                  {.micro = 2, .global = 12, .dp_rank = rank, .dp_size = 3, .consumed_samples = 6});
    const Microbatch first = loader.next(), second = loader.next();
    EXPECT_THAT(first.sample_ids, ::testing::ElementsAre(6 + 2 * rank, 7 + 2 * rank));
    EXPECT_THAT(second.sample_ids, ::testing::ElementsAre(12 + 2 * rank, 13 + 2 * rank));
    EXPECT_EQ(first.first_sample, 6);
    EXPECT_EQ(loader.consumed_samples(), 18);
  }
}

TEST(Loader, ContinuesFromConsumedSamples) {
  const auto dataset = std::make_shared<CountingDataset>(100);
  Loader straight(dataset, {.micro = 2, .global = 4});
  for (int i = 0; i < 5; ++i) straight.next();
  Loader resumed(dataset,
                 {.micro = 2, .global = 4, .consumed_samples = straight.consumed_samples()});
  for (int i = 0; i < 10; ++i) EXPECT_EQ(straight.next().tokens, resumed.next().tokens);
}

TEST(Loader, MasksPaddingAndEndOfDocument) {
  Loader padded(std::make_shared<CountingDataset>(4), {.micro = 1, .global = 1, .pad = 2});
  Microbatch microbatch = padded.next();
  EXPECT_THAT(microbatch.tokens, ::testing::ElementsAre(0, 1, 0));
  EXPECT_THAT(microbatch.loss_mask, ::testing::ElementsAre(1, 0, 1));

  Loader masked(std::make_shared<CountingDataset>(4),
                {.micro = 1, .global = 1, .eod = 1, .eod_mask_loss = true});
  EXPECT_THAT(masked.next().loss_mask, ::testing::ElementsAre(1, 0, 1));
}

TEST(Loader, ThrowsErrorsOfTheThreadInTheirPlace) {
  Loader loader(std::make_shared<CountingDataset>(100, 3), {.micro = 1, .global = 1});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(loader.next().first_sample, i);
  for (int i = 0; i < 2; ++i) {
    expect_error(ExitCode::Data, {"sample 3 is damaged"}, [&] { loader.next(); });
  }
  EXPECT_EQ(loader.consumed_samples(), 3);
}

TEST(Loader, SaysWhenTheDataEnds) {
  Loader loader(std::make_shared<CountingDataset>(5), {.micro = 2, .global = 2});
  loader.next();
  loader.next();
  expect_error(ExitCode::Data, {"the data ends", "only 5", "counting"}, [&] { loader.next(); });
}

TEST(Loader, StopsWhileItsQueueIsFull) {
  for (int i = 0; i < 20; ++i) {
    Loader loader(std::make_shared<CountingDataset>(1000),
                  {.micro = 1, .global = 1, .prefetch = 1 + i % 3});
    if (i % 2) loader.next();
  }
}

TEST(Loader, RefusesAGlobalBatchThatDoesNotDivide) {
  expect_error(ExitCode::Usage, {"batch.global = 6", "batch.micro = 2", "2 data-parallel"}, [] {
    Loader(std::make_shared<CountingDataset>(5), {.micro = 2, .global = 6, .dp_size = 2});
  });
}

}  // namespace
}  // namespace ferry
