#include "app/data/tokenizer.h"

#include "tests/app/data/data_fixtures.h"

#include <nlohmann/json.hpp>

namespace ferry {
namespace {

using testing::expect_error;

const std::string kGpt2 = FERRY_SOURCE_DIR "/configs/data/gpt2";

std::vector<int32_t> ids_of(Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

// One for all tests: loading takes a while. It is used by one thread.
Tokenizer& gpt2() {
  static const auto tokenizer = open_tokenizer(kGpt2);
  return *tokenizer;
}

struct Golden {
  const char* text;
  std::vector<int32_t> ids;
};

const Golden kGolden[] = {
    {"Hello world", {15496, 995}},
    {"  leading spaces", {220, 3756, 9029}},
    {"I've 12345 items,  don't!", {40, 1053, 17031, 2231, 3709, 11, 220, 836, 470, 0}},
    {"na\u00efve caf\u00e9 \u2014 \u65e5\u672c\u8a9e",
     {2616, 38776, 40304, 851, 10545, 245, 98, 17312, 105, 45739, 252}},
    {"a\n\n b\t\tc ", {64, 628, 275, 197, 197, 66, 220}},
    {"  \n  x", {220, 220, 198, 220, 2124}},
    {"\U0001F642\U0001F642", {8582, 25081, 8582, 25081}},
};

TEST(Gpt2Tokenizer, GoldenIds) {
  for (const Golden& golden : kGolden) {
    EXPECT_EQ(ids_of(gpt2(), golden.text), golden.ids) << golden.text;
    EXPECT_EQ(gpt2().decode(golden.ids), golden.text);
  }
}

TEST(Gpt2Tokenizer, VocabularyAndEndOfText) {
  EXPECT_EQ(gpt2().vocab_size(), 50257);
  EXPECT_EQ(gpt2().eod(), 50256);
  EXPECT_EQ(gpt2().decode(std::vector<int32_t>{50256}), "<|endoftext|>");
  EXPECT_THAT(gpt2().name(), ::testing::HasSubstr("encoder.json"));
  // Without a list of added tokens, text that looks like one is text.
  EXPECT_GT(ids_of(gpt2(), "<|endoftext|>").size(), 1u);
}

TEST(Gpt2Tokenizer, EncodeAppends) {
  std::vector<int32_t> ids{7};
  gpt2().encode("Hello world", ids);
  EXPECT_THAT(ids, ::testing::ElementsAre(7, 15496, 995));
  gpt2().encode("", ids);
  EXPECT_EQ(ids.size(), 3u);
}

TEST(Gpt2Tokenizer, LongPiecesAreFast) {
  const std::string text(300000, 'a');  // one piece; quadratic merging would take minutes
  EXPECT_EQ(gpt2().decode(ids_of(gpt2(), text)), text);
}

TEST(Gpt2Tokenizer, RealTextRoundTrips) {
  std::ifstream file(FERRY_SOURCE_DIR "/configs/data/moby_dick.jsonl");
  std::string line;
  for (int i = 0; i < 5 && std::getline(file, line); ++i) {
    const std::string text = nlohmann::json::parse(line).at("text");
    ASSERT_GT(text.size(), 100u);
    EXPECT_EQ(gpt2().decode(ids_of(gpt2(), text)), text);
  }
}

TEST(Gpt2Tokenizer, OpensEitherFileOrTheFolder) {
  EXPECT_EQ(ids_of(*open_tokenizer(kGpt2 + "/encoder.json"), "Hello world"),
            ids_of(gpt2(), "Hello world"));
}

TEST(Gpt2Tokenizer, RefusesBadInput) {
  expect_error(ExitCode::Data, {"not valid UTF-8"}, [] { ids_of(gpt2(), "a\xff"); });
  for (const int32_t id : {-1, 50257}) {
    expect_error(ExitCode::Data, {std::to_string(id), "encoder.json", "50257 ids"},
                 [&] { gpt2().decode(std::vector<int32_t>{id}); });
  }
}

}  // namespace
}  // namespace ferry
