#include "app/data/token_dataset.h"

#include "tests/app/data/data_fixtures.h"

#include <algorithm>
#include <set>

namespace ferry {
namespace {

using testing::bytes_of;
using testing::expect_error;
using testing::TempDir;
using testing::write_bytes;

std::vector<int32_t> sample_of(const TokenDataset& dataset, int64_t index) {
  std::vector<int32_t> tokens(static_cast<size_t>(dataset.seq()) + 1);
  dataset.sample(index, tokens);
  return tokens;
}

DataSpec spec_of(const std::string& path) {
  DataSpec spec;
  spec.paths = {path};
  spec.seq = 8;
  spec.num_samples = 5;
  spec.vocab = 100;
  return spec;
}

TEST(OpenDataset, RefusesIdsOutsideTheVocabularyAtTheStart) {
  TempDir dir;
  testing::write_documents(dir / "a", {{1, 2, 3}, {4, 300, 6, 7, 8, 9}});
  DataSpec spec = spec_of(dir / "a");
  spec.vocab = 257;
  expect_error(ExitCode::Data, {"a.bin", "document 1, token 1", "id 300", "vocabulary of 257"},
               [&] { open_dataset(spec); });
}

TEST(OpenDataset, NamesMissingFiles) {
  TempDir dir;
  expect_error(ExitCode::Data, {"absent.idx", "ferry data build"},
               [&] { open_dataset(spec_of(dir / "absent")); });
  DataSpec spec = spec_of("");
  spec.paths.clear();
  expect_error(ExitCode::Usage, {"data.train names no files"}, [&] { open_dataset(spec); });
  spec = spec_of(dir / "absent");
  spec.kind = "parquet";
  expect_error(ExitCode::Usage, {"\"parquet\"", "megatron, llmc or raw"},
               [&] { open_dataset(spec); });
}

TEST(OpenDataset, RefusesEmptySplitsAndTooFewTokens) {
  TempDir dir;
  testing::write_documents(dir / "a", {{1, 2, 3}});
  DataSpec spec = spec_of(dir / "a");
  spec.split = "1,0,0";
  spec.split_index = 1;
  expect_error(ExitCode::Data, {"a.bin", "\"1,0,0\" leaves none of its 1 sequences for valid"},
               [&] { open_dataset(spec); });
  spec = spec_of(dir / "a");
  spec.num_samples = 0;
  expect_error(ExitCode::Data, {"hold 3 tokens, too few for one sample of 9"},
               [&] { open_dataset(spec); });
  testing::write_documents(dir / "empty", {{}});
  expect_error(ExitCode::Data, {"hold 0 tokens"}, [&] { open_dataset(spec_of(dir / "empty")); });
}

TEST(OpenDataset, ShortFilesAreRepeated) {
  TempDir dir;
  testing::write_documents(dir / "a", {{1, 2, 3}});
  const auto dataset = open_dataset(spec_of(dir / "a"));
  EXPECT_GE(dataset->size(), 5);
  EXPECT_THAT(sample_of(*dataset, 4), ::testing::SizeIs(9));
}

TEST(OpenDataset, BlendsByWeight) {
  TempDir dir;
  testing::write_documents(dir / "a", {std::vector<int32_t>(50, 1)});
  testing::write_documents(dir / "b", {std::vector<int32_t>(50, 2)});
  DataSpec spec = spec_of("");
  spec.paths = {"3", dir / "a", "1", dir / "b"};
  spec.num_samples = 40;
  const auto dataset = open_dataset(spec);
  ASSERT_EQ(dataset->size(), 40);
  int64_t ones = 0;
  for (int64_t i = 0; i < 40; ++i) ones += sample_of(*dataset, i)[0] == 1;
  EXPECT_EQ(ones, 30);
  EXPECT_THAT(dataset->describe(), ::testing::HasSubstr("0.75 of "));

  const uint64_t print = dataset->fingerprint();
  spec.paths[0] = "2";
  EXPECT_NE(open_dataset(spec)->fingerprint(), print);
  spec.num_samples = 0;
  expect_error(ExitCode::Usage, {"number of samples"}, [&] { open_dataset(spec); });
}

TEST(OpenDataset, BlendsWithoutWeightsReadEveryFileOnce) {
  TempDir dir;
  testing::write_documents(dir / "a", {std::vector<int32_t>(25, 1)});
  testing::write_documents(dir / "b", {std::vector<int32_t>(41, 2)});
  DataSpec spec = spec_of("");
  spec.paths = {dir / "a", dir / "b"};
  spec.num_samples = 0;
  const auto dataset = open_dataset(spec);
  ASSERT_EQ(dataset->size(), 3 + 5);
  spec.num_samples = 6;
  EXPECT_EQ(open_dataset(spec)->size(), 6);
  spec.num_samples = 9;
  expect_error(ExitCode::Data, {"needs 9 samples", "2 data files hold 8", "weights"},
               [&] { open_dataset(spec); });
}

TEST(OpenDataset, ReadsOtherKinds) {
  TempDir dir;
  write_bytes(dir / "tokens.raw", bytes_of<uint16_t>({1, 2, 3, 0, 4, 5, 0, 6}));
  DataSpec spec = spec_of(dir / "tokens.raw");
  spec.kind = "raw";
  spec.seq = 7;
  spec.num_samples = 1;
  spec.eod = 0;
  const auto dataset = open_dataset(spec);
  EXPECT_THAT(dataset->describe(), ::testing::HasSubstr("sequences 0-3 of 3"));
  EXPECT_THAT(sample_of(*dataset, 0), ::testing::UnorderedElementsAre(1, 2, 3, 0, 4, 5, 0, 6));
  spec.kind = "llmc";
  expect_error(ExitCode::Data, {"tokens.raw", "llm.c header"}, [&] { open_dataset(spec); });
}

TEST(OpenDataset, SyntheticTokensAreReproducibleAndCoverTheVocabulary) {
  DataSpec spec = spec_of("");
  spec.kind = "synthetic";
  spec.vocab = 10;
  spec.seq = 400;
  const auto dataset = open_dataset(spec);
  EXPECT_EQ(dataset->size(), 5);
  const auto tokens = sample_of(*dataset, 3);
  EXPECT_EQ(tokens, sample_of(*open_dataset(spec), 3));
  EXPECT_NE(tokens, sample_of(*dataset, 2));
  EXPECT_EQ(std::set<int32_t>(tokens.begin(), tokens.end()).size(), 10u);
  EXPECT_EQ(*std::min_element(tokens.begin(), tokens.end()), 0);
  EXPECT_EQ(*std::max_element(tokens.begin(), tokens.end()), 9);
  spec.split_index = 1;
  EXPECT_NE(tokens, sample_of(*open_dataset(spec), 3));
  EXPECT_NE(dataset->fingerprint(), open_dataset(spec)->fingerprint());
}

TEST(OpenDataset, RefusesImpossibleSizes) {
  DataSpec spec = spec_of("a");
  spec.seq = 0;
  expect_error(ExitCode::Usage, {"model.seq = 0"}, [&] { open_dataset(spec); });
}

}  // namespace
}  // namespace ferry
