#include "huggingface/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/huggingface/tiny_model.h"

namespace ferry {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::TempDir;

class Safetensors : public ::testing::Test {
 protected:
  SafeHeader read(const std::string& header, size_t data_bytes) {
    const Path path = dir_ / concat("file-", count_++);
    testing::write_file(path, header, data_bytes);
    return read_safetensors_header(*posix_file_system().open(path), "model.safetensors");
  }
  std::string refusal(const std::string& header, size_t data_bytes) {
    return error_of([&] { read(header, data_bytes); });
  }

  TempDir dir_;
  int count_ = 0;
};

TEST_F(Safetensors, HeaderIsWrittenAsTheReferenceDoes) {
  const std::string header =
      safetensors_header({{"b", DType::F32, {1}, 0}, {"a", DType::BF16, {2}, 4}});
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
      R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]}})";
  EXPECT_EQ(header.size() % 8, 0u);
  EXPECT_EQ(header.substr(8, json.size()), json);
  EXPECT_EQ(static_cast<size_t>(static_cast<unsigned char>(header[0])), header.size() - 8);
  const SafeHeader back = read(header.substr(8), 8);
  ASSERT_EQ(back.tensors.size(), 2u);
  EXPECT_EQ(back.tensors[0].name, "b");
  EXPECT_EQ(back.tensors[1].begin, 4);
  EXPECT_EQ(back.tensors[1].dtype, DType::BF16);
  EXPECT_EQ(back.data_start, static_cast<int64_t>(header.size()));
}

TEST_F(Safetensors, OrderOfDataCountsNotOfNames) {
  const SafeHeader header = read(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},)"
                                 R"("b":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}}  )",
                                 8);
  EXPECT_EQ(header.tensors[0].name, "b");
}

std::string one(const std::string& name, const std::string& dtype, const std::string& shape,
                const std::string& offsets) {
  return "{\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}}";
}

TEST_F(Safetensors, EveryDefectOfAHeaderIsRefused) {
  EXPECT_EQ(refusal(one("a", "F32", "[2]", "[0,8]"), 8), "no error");
  EXPECT_THAT(refusal(one("a", "F32", "[2]", "[0,8]"), 12), HasSubstr("8 bytes, but 12 follow"));
  EXPECT_THAT(refusal(one("a", "F32", "[2]", "[0,8]"), 7), HasSubstr("no integer from 0 to 7"));
  EXPECT_THAT(refusal(one("a", "F32", "[2]", "[0,4]"), 4), HasSubstr("span 4 bytes, but"));
  EXPECT_THAT(refusal(one("a", "F32", "[2]", "[8,0]"), 8), HasSubstr("span -8 bytes"));
  EXPECT_THAT(refusal(one("a", "F32", "[1]", "[4,8]"), 8), HasSubstr("gap before tensor a"));
  EXPECT_THAT(refusal(one("a", "F32", "[2]", "[0]"), 8), HasSubstr("no two integers"));
  EXPECT_THAT(refusal(one("a", "F32", "[2]", "[0,-8]"), 8), HasSubstr("no integer"));
  EXPECT_THAT(refusal(one("a", "F32", "[2]", "[0,8.0]"), 8), HasSubstr("no integer"));
  EXPECT_THAT(refusal(one("a", "F16", "[4]", "[0,8]"), 8), HasSubstr("has dtype \"F16\""));
  EXPECT_THAT(refusal(one("a", "F32", "[]", "[0,4]"), 4), HasSubstr("no list of 1 to 4"));
  EXPECT_THAT(refusal(one("a", "F32", "[1,1,1,1,2]", "[0,8]"), 8), HasSubstr("no list of 1 to 4"));
  EXPECT_THAT(refusal(one("a", "F32", "[4294967296,4294967296]", "[0,0]"), 0),
              HasSubstr("elements"));
  EXPECT_THAT(refusal(one("a", "F32", "[99999999999999999999]", "[0,0]"), 0),
              HasSubstr("no integer"));
  EXPECT_THAT(refusal(one("../a", "F32", "[2]", "[0,8]"), 8), HasSubstr("characters other than"));
  EXPECT_THAT(refusal(one("", "F32", "[2]", "[0,8]"), 8), HasSubstr("empty or too long"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"F32","shape":[2]}})", 8),
              HasSubstr("does not have exactly"));
  EXPECT_THAT(refusal(R"({"a":3})", 8), HasSubstr("does not have exactly"));
  EXPECT_THAT(refusal("[1]", 0), HasSubstr("does not begin with {"));
  EXPECT_THAT(refusal("{oops", 0), HasSubstr("is not JSON"));
  const std::string entry = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_THAT(refusal("{\"a\":" + entry + ",\"a\":" + entry + "}", 4), HasSubstr("'a' twice"));
  EXPECT_THAT(refusal("{\"a\":" + entry + ",\"b\":" + entry + "}", 4), HasSubstr("overlaps"));
}

TEST_F(Safetensors, LengthOfTheHeaderIsCheckedAgainstTheFile) {
  const auto refusal_of = [&](const std::string& bytes) {
    const Path path = dir_ / concat("raw-", count_++);
    write_text(posix_file_system(), path, bytes);
    return error_of([&] { read_safetensors_header(*posix_file_system().open(path), "f"); });
  };
  EXPECT_THAT(refusal_of("abc"), HasSubstr("4: error: f is no valid"));
  EXPECT_THAT(refusal_of("abc"), HasSubstr("shorter than 8 bytes"));
  EXPECT_THAT(refusal_of(std::string("\x03\0\0\0\0\0\0\0{}", 10)), HasSubstr("would have 3 bytes"));
  EXPECT_THAT(refusal_of(std::string(8, '\xff') + "{}"), HasSubstr("but the file has 10"));
  EXPECT_THAT(refusal_of(std::string(8, '\0')), HasSubstr("does not begin with {"));
}

}  // namespace
}  // namespace ferry
