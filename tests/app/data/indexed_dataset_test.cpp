#include "app/data/indexed_dataset.h"

#include "tests/app/data/data_fixtures.h"

#include <cstring>
#include <functional>

namespace ferry {
namespace {

using testing::bytes_of;
using testing::expect_error;
using testing::read_bytes;
using testing::TempDir;
using testing::write_bytes;

// u16; sequences of 3, 2 and 4 tokens; documents {0, 1} and {2}.
constexpr char kGoldenIdx[] =
    "4d4d4944494458000001000000000000000803000000000000000300000000000000030000000200000004000000"
    "000000000000000006000000000000000a000000000000000000000000000000020000000000000003000000000000"
    "00";

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

const std::string kGoldenBin = bytes_of<uint16_t>({10, 11, 12, 20, 21, 30, 31, 32, 33});

std::vector<int32_t> tokens_of(const TokenFile& file, int64_t sequence) {
  std::vector<int32_t> tokens(static_cast<size_t>(file.lengths()[sequence]));
  file.read(sequence, 0, kAnyVocab, tokens);
  return tokens;
}

TEST(IndexedDataset, WritesTheGoldenFile) {
  TempDir dir;
  const std::string prefix = dir / "golden";
  IndexedWriter writer(prefix, TokenType::U16, /*overwrite=*/false);
  writer.add_sequence(std::vector<int32_t>{10, 11, 12});
  writer.add_sequence(std::vector<int32_t>{20, 21});
  writer.end_document();
  writer.add_sequence(std::vector<int32_t>{30, 31, 32, 33});
  writer.end_document();
  EXPECT_FALSE(std::filesystem::exists(prefix + ".bin"));
  writer.finish();
  EXPECT_EQ(writer.num_documents(), 2);
  EXPECT_EQ(writer.num_tokens(), 9);
  EXPECT_EQ(read_bytes(prefix + ".idx").size(), 94u);
  EXPECT_EQ(read_bytes(prefix + ".idx"), from_hex(kGoldenIdx));
  EXPECT_EQ(read_bytes(prefix + ".bin"), kGoldenBin);
}

TEST(IndexedDataset, ReadsTheGoldenFile) {
  TempDir dir;
  write_bytes(dir / "golden.idx", from_hex(kGoldenIdx));
  write_bytes(dir / "golden.bin", kGoldenBin);
  for (const char* name : {"golden", "golden.bin", "golden.idx"}) {
    const TokenFile file = open_indexed_dataset(dir / name);
    EXPECT_EQ(file.num_sequences(), 3);
    EXPECT_EQ(file.num_documents(), 2);
    EXPECT_EQ(file.num_tokens(), 9);
    EXPECT_EQ(file.type(), TokenType::U16);
    EXPECT_THAT(file.documents(), ::testing::ElementsAre(0, 2, 3));
    EXPECT_THAT(tokens_of(file, 0), ::testing::ElementsAre(10, 11, 12));
    EXPECT_THAT(tokens_of(file, 1), ::testing::ElementsAre(20, 21));
    EXPECT_THAT(tokens_of(file, 2), ::testing::ElementsAre(30, 31, 32, 33));
    EXPECT_EQ(file.scan(34, kAnyVocab), 33);
    EXPECT_EQ(file.scan(34, 4), 20);
  }
}

TEST(IndexedDataset, EveryTokenTypeRoundTrips) {
  TempDir dir;
  for (const TokenType type : {TokenType::U8, TokenType::I8, TokenType::I16, TokenType::I32,
                               TokenType::I64, TokenType::U16}) {
    const std::string prefix = dir / std::string(name_of(type));
    testing::write_documents(prefix, {{1, 2, 127}, {}, {5}}, type);
    const TokenFile file = open_indexed_dataset(prefix);
    EXPECT_EQ(file.type(), type);
    EXPECT_THAT(tokens_of(file, 0), ::testing::ElementsAre(1, 2, 127));
    EXPECT_THAT(tokens_of(file, 2), ::testing::ElementsAre(5));
    EXPECT_EQ(read_bytes(prefix + ".bin").size(), 4 * static_cast<size_t>(size_of(type)));
  }
}

TEST(IndexedDataset, TypeFollowsFromTheVocabulary) {
  EXPECT_EQ(token_type_for(65499), TokenType::U16);
  EXPECT_EQ(token_type_for(65500), TokenType::I32);
}

TEST(IndexedDataset, EmptyDocumentsHaveNoSequence) {
  TempDir dir;
  IndexedWriter writer(dir / "a", TokenType::U16, false);
  writer.end_document();
  writer.add_sequence(std::vector<int32_t>{7});
  writer.end_document();
  writer.end_document();
  writer.finish();
  const TokenFile file = open_indexed_dataset(dir / "a");
  EXPECT_EQ(file.num_documents(), 3);
  EXPECT_THAT(file.documents(), ::testing::ElementsAre(0, 0, 1, 1));
}

TEST(IndexedDataset, ReadsTheModesOfMultimodalFiles) {
  TempDir dir;
  write_bytes(dir / "golden.idx", from_hex(kGoldenIdx) + std::string(3, '\0'));
  write_bytes(dir / "golden.bin", kGoldenBin);
  EXPECT_EQ(open_indexed_dataset(dir / "golden").num_sequences(), 3);
}

TEST(IndexedDataset, MissingFilesSayHowToMakeThem) {
  TempDir dir;
  expect_error(ExitCode::Data, {"absent.idx", "ferry data build"},
               [&] { open_indexed_dataset(dir / "absent"); });
  write_bytes(dir / "half.idx", from_hex(kGoldenIdx));
  expect_error(ExitCode::Data, {"no file", "half.bin"},
               [&] { open_indexed_dataset(dir / "half"); });
}

// A damaged copy of the golden pair, and what the error must say.
struct Mutation {
  const char* name;
  std::function<void(std::string& idx, std::string& bin)> apply;
  const char* file;
  const char* message;
};

template <class T>
std::function<void(std::string&, std::string&)> put(size_t offset, T value) {
  return
      [=](std::string& idx, std::string&) { std::memcpy(idx.data() + offset, &value, sizeof(T)); };
}

const Mutation kMutations[] = {
    {"BadMagic", put<char>(0, 'X'), "a.idx", "MMIDIDX"},
    {"BadVersion", put<uint64_t>(9, 2), "a.idx", "version 2"},
    {"FloatType", put<uint8_t>(17, 7), "a.idx", "dtype code 7"},
    {"UnknownType", put<uint8_t>(17, 0), "a.idx", "dtype code 0"},
    {"TruncatedHeader", [](auto& idx, auto&) { idx.resize(33); }, "a.idx", "truncated"},
    {"Empty", [](auto& idx, auto&) { idx.clear(); }, "a.idx", "0 bytes are too few"},
    {"TruncatedArrays", [](auto& idx, auto&) { idx.resize(93); }, "a.idx", "truncated"},
    {"TrailingBytes", [](auto& idx, auto&) { idx += "xx"; }, "a.idx", "2 bytes follow"},
    {"HugeSequenceCount", put<uint64_t>(18, uint64_t{1} << 62), "a.idx", "4611686018427387904"},
    {"HugeDocumentCount", put<uint64_t>(26, ~uint64_t{0}), "a.idx", "18446744073709551615"},
    {"NoDocumentIndex",
     [](auto& idx, auto&) {
       idx.resize(70);
       idx[26] = 0;
     },
     "a.idx", "no document index"},
    {"FirstDocument", put<int64_t>(70, 1), "a.idx", "first document index is 1"},
    {"LastDocument", put<int64_t>(86, 2), "a.idx", "last document index is 2, not the 3"},
    {"DecreasingDocuments", put<int64_t>(78, 5), "a.idx", "decreases from 5 to 3"},
    {"WrongPointer", put<int64_t>(54, 8), "a.idx", "sequence 1 starts at byte 8"},
    {"FirstPointer", put<int64_t>(46, 2), "a.idx", "sequence 0 starts at byte 2"},
    {"NegativeLength", put<int32_t>(38, -2), "a.idx", "negative length -2"},
    {"ShortBin", [](auto&, auto& bin) { bin.pop_back(); }, "a.bin", "truncated"},
    {"EmptyBin", [](auto&, auto& bin) { bin.clear(); }, "a.bin", "truncated"},
    {"LongBin", [](auto&, auto& bin) { bin += "x"; }, "a.bin", "too long"},
};

class IndexedDatasetMutation : public ::testing::TestWithParam<Mutation> {};

TEST_P(IndexedDatasetMutation, IsRefused) {
  TempDir dir;
  std::string idx = from_hex(kGoldenIdx), bin = kGoldenBin;
  GetParam().apply(idx, bin);
  write_bytes(dir / "a.idx", idx);
  write_bytes(dir / "a.bin", bin);
  expect_error(ExitCode::Data, {GetParam().file, GetParam().message},
               [&] { open_indexed_dataset(dir / "a"); });
}

INSTANTIATE_TEST_SUITE_P(All, IndexedDatasetMutation, ::testing::ValuesIn(kMutations),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(IndexedWriter, RefusesAnExistingPrefix) {
  TempDir dir;
  testing::write_documents(dir / "a", {{1, 2}});
  expect_error(ExitCode::Usage, {"a.bin exists", "--overwrite"},
               [&] { IndexedWriter(dir / "a", TokenType::U16, false); });
  testing::write_documents(dir / "a", {{3}});  // with overwrite
  EXPECT_THAT(tokens_of(open_indexed_dataset(dir / "a"), 0), ::testing::ElementsAre(3));
}

TEST(IndexedWriter, LeavesNothingWithoutFinish) {
  TempDir dir;
  {
    IndexedWriter writer(dir / "a", TokenType::U16, false);
    writer.add_sequence(std::vector<int32_t>{1});
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(IndexedWriter, RefusesIdsThatDoNotFit) {
  TempDir dir;
  IndexedWriter writer(dir / "a", TokenType::U16, false);
  expect_error(ExitCode::Data, {"a.bin", "document 0, token 1", "id 70000", "u16"}, [&] {
    writer.add_sequence(std::vector<int32_t>{1, 70000});
  });
}

TEST(IndexedWriter, NamesAFolderThatIsNotThere) {
  TempDir dir;
  expect_error(ExitCode::Storage, {"cannot create", "absent/a.bin", "No such file"},
               [&] { IndexedWriter(dir / "absent/a", TokenType::U16, false); });
}

TEST(IndexedWriter, NamesAFullDisk) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  TempDir dir;
  // The temporary name leads to a device that is always full.
  const auto temporary = dir / ("a.bin.tmp." + std::to_string(::getpid()));
  std::filesystem::create_symlink("/dev/full", temporary);
  IndexedWriter writer(dir / "a", TokenType::U16, false);
  writer.add_sequence(std::vector<int32_t>{1});
  writer.end_document();
  expect_error(ExitCode::Storage, {"cannot write", "a.bin", "No space left"},
               [&] { writer.finish(); });
}

}  // namespace
}  // namespace ferry
