#include "app/data/token_file.h"

#include "tests/app/data/data_fixtures.h"

namespace ferry {
namespace {

using testing::bytes_of;
using testing::expect_error;
using testing::TempDir;
using testing::write_bytes;

TEST(TokenFile, NamesFileDocumentOffsetIdAndVocabulary) {
  TempDir dir;
  IndexedWriter writer(dir / "a", TokenType::U16, false);
  writer.add_sequence(std::vector<int32_t>{1, 2, 3});
  writer.end_document();
  writer.add_sequence(std::vector<int32_t>{4, 5});
  writer.add_sequence(std::vector<int32_t>{6, 300});
  writer.end_document();
  writer.finish();
  const TokenFile file = open_indexed_dataset(dir / "a");
  std::vector<int32_t> out(2);
  const std::vector<std::string> parts{"a.bin",        "document 1, token 3", "byte 12",
                                       "token id 300", "vocabulary of 257",   "model.vocab"};
  expect_error(ExitCode::Data, parts, [&] { file.read(2, 0, 257, out); });
  expect_error(ExitCode::Data, parts, [&] { file.scan(257, kAnyVocab); });
  EXPECT_EQ(file.scan(301, kAnyVocab), 300);
  EXPECT_EQ(file.scan(257, 6), 6);
}

TEST(TokenFile, RefusesNegativeAndHugeIds) {
  TempDir dir;
  testing::write_documents(dir / "a", {{0, 0}}, TokenType::I64);
  write_bytes(dir / "a.bin", bytes_of<int64_t>({-1, int64_t{1} << 40}));
  const TokenFile file = open_indexed_dataset(dir / "a");
  std::vector<int32_t> out(1);
  expect_error(ExitCode::Data, {"token id -1 "}, [&] { file.read(0, 0, kAnyVocab, out); });
  expect_error(ExitCode::Data, {"token id 1099511627776"},
               [&] { file.read(0, 1, kAnyVocab, out); });
}

TEST(TokenFile, FingerprintFollowsTheStructure) {
  TempDir dir;
  testing::write_documents(dir / "a", {{1, 2, 3}, {4}});
  testing::write_documents(dir / "same", {{9, 9, 9}, {9}});
  testing::write_documents(dir / "other", {{1, 2}, {3, 4}});
  const uint64_t print = open_indexed_dataset(dir / "a").fingerprint();
  EXPECT_EQ(print, open_indexed_dataset(dir / "same").fingerprint());
  EXPECT_NE(print, open_indexed_dataset(dir / "other").fingerprint());
}

}  // namespace
}  // namespace ferry
