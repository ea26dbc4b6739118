#include "app/data/dataset_tools.h"

#include "app/data/byte_tokenizer.h"
#include "tests/app/data/data_fixtures.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using testing::expect_error;
using testing::read_bytes;
using testing::TempDir;
using testing::write_bytes;

TEST(BuildDataset, TokenizesDocuments) {
  TempDir dir;
  write_bytes(dir / "a.jsonl", "{\"text\": \"hi\"}\n{\"text\": \"\"}\n{\"text\": \"yo!\"}\n");
  ByteTokenizer tokenizer;
  const BuildResult result = build_dataset(
      {.inputs = {dir / "a.jsonl"}, .output = dir / "new/folder/out", .append_eod = true},
      tokenizer);
  EXPECT_EQ(result.documents, 3);
  EXPECT_EQ(result.tokens, 7);
  EXPECT_EQ(result.text_bytes, 5);
  const TokenFile file = open_indexed_dataset(dir / "new/folder/out");
  EXPECT_EQ(file.type(), TokenType::U16);
  EXPECT_THAT(file.documents(), ElementsAre(0, 1, 1, 2));
  EXPECT_THAT(file.lengths(), ElementsAre(3, 4));
  std::vector<int32_t> ids(4);
  file.read(1, 0, 257, ids);
  EXPECT_THAT(ids, ElementsAre('y', 'o', '!', 256));
}

TEST(BuildDataset, LeavesNothingAfterAnError) {
  TempDir dir;
  write_bytes(dir / "a.jsonl", "{\"text\": \"hi\"}\n{");
  ByteTokenizer tokenizer;
  expect_error(ExitCode::Data, {"a.jsonl:2"}, [&] {
    build_dataset({.inputs = {dir / "a.jsonl"}, .output = dir / "out/a"}, tokenizer);
  });
  EXPECT_TRUE(std::filesystem::is_empty(dir / "out"));
}

TEST(BuildDataset, RefusesAnExistingOutput) {
  TempDir dir;
  write_bytes(dir / "a.txt", "x");
  ByteTokenizer tokenizer;
  BuildOptions options{.inputs = {dir / "a.txt"}, .output = dir / "a"};
  build_dataset(options, tokenizer);
  expect_error(ExitCode::Usage, {"a.bin exists", "--overwrite"},
               [&] { build_dataset(options, tokenizer); });
  options.overwrite = true;
  EXPECT_EQ(build_dataset(options, tokenizer).tokens, 1);
}

TEST(BuildDataset, NamesAFolderThatCannotBeMade) {
  TempDir dir;
  write_bytes(dir / "a.txt", "x");
  ByteTokenizer tokenizer;
  expect_error(ExitCode::Storage, {"cannot make the folder", "a.txt/b"}, [&] {
    build_dataset({.inputs = {dir / "a.txt"}, .output = dir / "a.txt/b/c"}, tokenizer);
  });
}

class NoEod : public ByteTokenizer {
 public:
  int32_t eod() const override { return -1; }
};

TEST(BuildDataset, NeedsAnEodToAppend) {
  NoEod tokenizer;
  expect_error(ExitCode::Usage, {"--append-eod", "byte", "no end-of-document"},
               [&] { build_dataset({.output = "x", .append_eod = true}, tokenizer); });
}

TEST(DatasetInfo, CountsEverything) {
  TempDir dir;
  testing::write_documents(dir / "a", {{5, 6, 7, 7}, {900, 6}}, TokenType::I32);
  const DatasetInfo info = dataset_info(open_indexed_dataset(dir / "a"));
  EXPECT_THAT(info.file, ::testing::EndsWith("a.bin"));
  EXPECT_EQ(info.dtype, "i32");
  EXPECT_EQ(info.documents, 2);
  EXPECT_EQ(info.sequences, 2);
  EXPECT_EQ(info.tokens, 6);
  EXPECT_EQ(info.bytes, 24);
  EXPECT_EQ(info.largest_id, 900);
  EXPECT_EQ(info.min_length, 2);
  EXPECT_EQ(info.max_length, 4);
  EXPECT_DOUBLE_EQ(info.mean_length, 3.0);
  EXPECT_GT(info.entropy.unigram, 1.0);
}

TEST(MergeDatasets, EqualsWritingTheDocumentsAtOnce) {
  TempDir dir;
  testing::write_documents(dir / "a", {{1, 2}, {3}});
  testing::write_documents(dir / "b", {{4, 5, 6}});
  testing::write_documents(dir / "both", {{1, 2}, {3}, {4, 5, 6}});
  const BuildResult result = merge_datasets({dir / "a", dir / "b"}, dir / "c", false);
  EXPECT_EQ(result.documents, 3);
  EXPECT_EQ(result.tokens, 6);
  EXPECT_EQ(read_bytes(dir / "c.idx"), read_bytes(dir / "both.idx"));
  EXPECT_EQ(read_bytes(dir / "c.bin"), read_bytes(dir / "both.bin"));
  expect_error(ExitCode::Usage, {"c.bin exists"},
               [&] { merge_datasets({dir / "a"}, dir / "c", false); });
}

TEST(MergeDatasets, WidensTokenTypes) {
  TempDir dir;
  testing::write_documents(dir / "a", {{60000}}, TokenType::U16);
  testing::write_documents(dir / "b", {{70000}}, TokenType::I32);
  testing::write_documents(dir / "wide", {{70000}}, TokenType::I64);
  merge_datasets({dir / "a", dir / "b"}, dir / "c", false);
  EXPECT_EQ(open_indexed_dataset(dir / "c").type(), TokenType::I32);
  EXPECT_EQ(open_indexed_dataset(dir / "c").scan(kAnyVocab, 1), 60000);
  merge_datasets({dir / "a", dir / "wide"}, dir / "d", false);
  EXPECT_EQ(open_indexed_dataset(dir / "d").type(), TokenType::I64);
}

}  // namespace
}  // namespace ferry
