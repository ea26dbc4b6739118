#include "app/data/other_token_files.h"

#include "tests/app/data/data_fixtures.h"

namespace ferry {
namespace {

using testing::bytes_of;
using ::testing::ElementsAre;
using testing::expect_error;
using testing::TempDir;
using testing::write_bytes;

std::vector<int32_t> all_tokens(const TokenFile& file) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < file.num_sequences(); ++i) {
    const size_t begin = tokens.size();
    tokens.resize(begin + static_cast<size_t>(file.lengths()[i]));
    file.read(i, 0, kAnyVocab, std::span(tokens).subspan(begin));
  }
  return tokens;
}

std::string llmc_header(int32_t magic, int32_t version, int32_t count) {
  std::vector<int32_t> words(256, 0);
  words[0] = magic;
  words[1] = version;
  words[2] = count;
  return bytes_of(words);
}

TEST(LlmcShard, DocumentsStartWithTheEndOfText) {
  TempDir dir;
  const std::string path = dir / "shard.bin";
  write_bytes(path, llmc_header(20240520, 1, 6) + bytes_of<uint16_t>({99, 1, 2, 99, 4, 65535}));
  const TokenFile file = open_llmc_shard(path, 99);
  EXPECT_EQ(file.type(), TokenType::U16);
  EXPECT_THAT(file.lengths(), ElementsAre(3, 3));
  EXPECT_THAT(file.documents(), ElementsAre(0, 1, 2));
  EXPECT_THAT(all_tokens(file), ElementsAre(99, 1, 2, 99, 4, 65535));
  EXPECT_THAT(open_llmc_shard(path, -1).lengths(), ElementsAre(6));
  // Byte positions in messages count the header.
  expect_error(ExitCode::Data, {"document 1, token 2 (byte 1034 of the file): token id 65535"},
               [&] { file.scan(50257, kAnyVocab); });
}

TEST(LlmcShard, ReadsLlama3Shards) {
  TempDir dir;
  write_bytes(dir / "s.bin", llmc_header(20240801, 7, 2) + bytes_of<uint32_t>({128000, 5}));
  EXPECT_THAT(all_tokens(open_llmc_shard(dir / "s.bin", 128000)), ElementsAre(128000, 5));
}

TEST(LlmcShard, RefusesOtherHeadersAndSizes) {
  TempDir dir;
  const std::string path = dir / "s.bin";
  const auto expect = [&](const std::string& bytes, const std::string& message) {
    write_bytes(path, bytes);
    expect_error(ExitCode::Data, {"s.bin", message}, [&] { open_llmc_shard(path, -1); });
  };
  expect("short", "5 bytes are too few");
  expect(llmc_header(7, 1, 0), "magic 7 version 1");
  expect(llmc_header(20240520, 2, 0), "magic 20240520 version 2");
  expect(llmc_header(20240520, 1, 3) + "1234", "promises 3 tokens of 2 bytes, but 4 bytes follow");
  expect(llmc_header(20240520, 1, 1) + "1234", "promises 1 tokens of 2 bytes, but 4 bytes follow");
  expect(llmc_header(20240520, 1, -1), "promises -1 tokens");
}

TEST(RawTokens, DocumentsEndWithTheEndOfDocument) {
  TempDir dir;
  write_bytes(dir / "a.npy", bytes_of<uint16_t>({1, 2, 0, 0, 4, 5}));
  const TokenFile file = open_raw_tokens(dir / "a.npy", 65536, 0);
  EXPECT_EQ(file.type(), TokenType::U16);
  EXPECT_THAT(file.lengths(), ElementsAre(3, 1, 2));
  EXPECT_THAT(all_tokens(file), ElementsAre(1, 2, 0, 0, 4, 5));
  EXPECT_THAT(open_raw_tokens(dir / "a.npy", 65536, -1).lengths(), ElementsAre(6));
}

TEST(RawTokens, LargeVocabulariesAre32Bits) {
  TempDir dir;
  write_bytes(dir / "a", bytes_of<uint32_t>({66000, 2}));
  EXPECT_THAT(all_tokens(open_raw_tokens(dir / "a", 65537, -1)), ElementsAre(66000, 2));
  EXPECT_EQ(open_raw_tokens(dir / "a", 65536, -1).num_tokens(), 4);
  write_bytes(dir / "empty", "");
  EXPECT_EQ(open_raw_tokens(dir / "empty", 10, -1).num_sequences(), 0);
}

TEST(RawTokens, RefusesPartsOfTokensAndRealNpyFiles) {
  TempDir dir;
  write_bytes(dir / "a", "123");
  expect_error(ExitCode::Data, {"a: 3 bytes are not a whole number of u16", "vocabulary of 10"},
               [&] { open_raw_tokens(dir / "a", 10, -1); });
  write_bytes(dir / "a", "\x93NUMPY..");
  expect_error(ExitCode::Data, {".npy file with a header"},
               [&] { open_raw_tokens(dir / "a", 10, -1); });
}

TEST(OpenTokenFile, KnowsThreeKinds) {
  expect_error(ExitCode::Usage, {"\"parquet\"", "megatron, llmc or raw"},
               [] { open_token_file("parquet", "a", 10, -1); });
}

}  // namespace
}  // namespace ferry
