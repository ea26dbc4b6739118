#include "app/data/entropy.h"

#include "tests/app/data/data_fixtures.h"

#include <cmath>

namespace ferry {
namespace {

using testing::TempDir;

Entropy entropy_of(const std::vector<std::vector<int32_t>>& documents) {
  TempDir dir;
  testing::write_documents(dir / "a", documents);
  return token_entropy(open_indexed_dataset(dir / "a"));
}

TEST(Entropy, UniformTokens) {
  const Entropy entropy = entropy_of({{0, 1, 2, 3}});
  EXPECT_NEAR(entropy.unigram, std::log(4.0), 1e-12);
  EXPECT_NEAR(entropy.bigram, 0.0, 1e-12);  // every token is always followed by the same
}

TEST(Entropy, HandCountedPairs) {
  // After 0 comes 0 once and 1 twice, after 1 comes 0 once: (3/4) H(1/3, 2/3) + (1/4) 0.
  const Entropy entropy = entropy_of({{0, 0, 1, 0, 1}});
  const double expected = 0.75 * -(std::log(1 / 3.0) / 3 + 2 * std::log(2 / 3.0) / 3);
  EXPECT_NEAR(entropy.bigram, expected, 1e-12);
  EXPECT_NEAR(entropy.unigram, -(0.6 * std::log(0.6) + 0.4 * std::log(0.4)), 1e-12);
}

TEST(Entropy, PairsEndWithTheDocumentNotWithTheSequence) {
  EXPECT_NEAR(entropy_of({{0, 0}, {0, 1}}).bigram, std::log(2.0), 1e-12);
  EXPECT_NEAR(entropy_of({{0}, {1}, {0}, {0}}).bigram, 0.0, 1e-12);

  TempDir dir;
  IndexedWriter writer(dir / "a", TokenType::U16, false);
  for (const int32_t token : {0, 0, 1}) writer.add_sequence(std::vector<int32_t>{token});
  writer.end_document();
  writer.finish();
  EXPECT_NEAR(token_entropy(open_indexed_dataset(dir / "a")).bigram, std::log(2.0), 1e-12);
}

TEST(Entropy, EmptyFiles) {
  EXPECT_EQ(entropy_of({}).unigram, 0);
  EXPECT_EQ(entropy_of({{}}).bigram, 0);
}

}  // namespace
}  // namespace ferry
