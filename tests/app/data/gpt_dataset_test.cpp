#include "app/data/gpt_dataset.h"

#include "tests/app/data/data_fixtures.h"

namespace ferry {
namespace {

using testing::TempDir;

std::vector<int32_t> sample_of(const TokenDataset& dataset, int64_t index) {
  std::vector<int32_t> tokens(static_cast<size_t>(dataset.seq()) + 1);
  dataset.sample(index, tokens);
  return tokens;
}

// The lengths of the golden vectors of sample_order_test; token t of sequence s is 10 s + t.
std::vector<std::vector<int32_t>> golden_documents() {
  std::vector<std::vector<int32_t>> documents;
  for (const int length : {5, 3, 9, 4, 7, 2, 8, 6}) {
    std::vector<int32_t> document;
    for (int t = 0; t < length; ++t) {
      document.push_back(static_cast<int32_t>(10 * documents.size()) + t);
    }
    documents.push_back(document);
  }
  return documents;
}

DataSpec spec_of(const std::string& path) {
  DataSpec spec;
  spec.paths = {path};
  spec.seq = 8;
  spec.num_samples = 5;
  spec.vocab = 100;
  return spec;
}

TEST(GptDataset, SamplesFollowTheGoldenOrder) {
  TempDir dir;
  testing::write_documents(dir / "a", golden_documents());
  const auto dataset = open_dataset(spec_of(dir / "a"));
  ASSERT_EQ(dataset->size(), 5);
  EXPECT_EQ(dataset->seq(), 8);
  // documents 2 1 6 0 4 5 3 7; shuffle 2 0 4 3 1; starts 0,0 0,8 2,4 3,4 5,0 7,2.
  EXPECT_THAT(sample_of(*dataset, 1), ::testing::ElementsAre(20, 21, 22, 23, 24, 25, 26, 27, 28));
  EXPECT_THAT(sample_of(*dataset, 4), ::testing::ElementsAre(28, 10, 11, 12, 60, 61, 62, 63, 64));
  EXPECT_THAT(sample_of(*dataset, 0), ::testing::ElementsAre(64, 65, 66, 67, 0, 1, 2, 3, 4));
  EXPECT_THAT(sample_of(*dataset, 3), ::testing::ElementsAre(4, 40, 41, 42, 43, 44, 45, 46, 50));
  EXPECT_THAT(sample_of(*dataset, 2), ::testing::ElementsAre(50, 51, 30, 31, 32, 33, 70, 71, 72));
  EXPECT_THAT(dataset->describe(), ::testing::HasSubstr("a.bin: sequences 0-8 of 8, 5 samples"));
}

TEST(GptDataset, SplitsDoNotOverlap) {
  TempDir dir;
  testing::write_documents(dir / "a", golden_documents());
  DataSpec spec = spec_of(dir / "a");
  spec.split = "6,2";
  spec.seq = 3;
  spec.num_samples = 8;
  const auto train = open_dataset(spec);
  spec.split_index = 1;
  const auto valid = open_dataset(spec);
  for (int64_t i = 0; i < train->size(); ++i) {
    for (const int32_t id : sample_of(*train, i)) EXPECT_LT(id, 60);
  }
  for (int64_t i = 0; i < valid->size(); ++i) {
    for (const int32_t id : sample_of(*valid, i)) EXPECT_GE(id, 60);
  }
  EXPECT_NE(train->fingerprint(), valid->fingerprint());
}

TEST(GptDataset, FingerprintKnowsWhatChangesTheOrder) {
  TempDir dir;
  testing::write_documents(dir / "a", golden_documents());
  const DataSpec base = spec_of(dir / "a");
  const uint64_t print = open_dataset(base)->fingerprint();
  EXPECT_EQ(open_dataset(base)->fingerprint(), print);
  DataSpec other = base;
  other.num_samples = 4;  // still one epoch: the same order
  EXPECT_EQ(open_dataset(other)->fingerprint(), print);
  other.num_samples = 12;
  EXPECT_NE(open_dataset(other)->fingerprint(), print);
  other = base;
  other.seed = 1;
  EXPECT_NE(open_dataset(other)->fingerprint(), print);
  other = base;
  other.seq = 7;
  EXPECT_NE(open_dataset(other)->fingerprint(), print);
}

}  // namespace
}  // namespace ferry
