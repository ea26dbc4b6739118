#include "app/data/bpe_tokenizer.h"

#include "app/data/byte_alphabet.h"
#include "tests/app/data/data_fixtures.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <random>

namespace ferry {
namespace {

using ::testing::ElementsAre;
using testing::expect_error;
using testing::TempDir;
using testing::write_bytes;
using Json = nlohmann::json;

// Ids 0 to 255 are the bytes; then ab = 256, abc = 257, bc = 258, " a" = 259.
Json small_vocab() {
  Json vocab;
  for (int b = 0; b < 256; ++b) vocab[spell_bytes(std::string(1, static_cast<char>(b)))] = b;
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  vocab["bc"] = 258;
  vocab["\u0120a"] = 259;
  return vocab;
}

Json small_tokenizer() {
  Json json;
  json["version"] = "1.0";
  json["added_tokens"] = Json::array();
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  json["decoder"] = {{"type", "ByteLevel"}};
  json["model"] = {{"type", "BPE"}, {"vocab", small_vocab()}};
  json["model"]["merges"] =
      Json::parse(R"([["a", "b"], ["b", "c"], ["ab", "c"], ["\u0120", "a"]])");
  return json;
}

class BpeTokenizerJson : public ::testing::Test {
 protected:
  std::unique_ptr<Tokenizer> open(const Json& json) {
    write_bytes(dir_ / "tokenizer.json", json.dump());
    return open_tokenizer(dir_ / "tokenizer.json");
  }
  std::vector<int32_t> encode(const Json& json, std::string_view text) {
    std::vector<int32_t> ids;
    open(json)->encode(text, ids);
    return ids;
  }
  void expect_refused(const Json& json, const std::string& what) {
    expect_error(ExitCode::Data, {"tokenizer.json", what}, [&] { open(json); });
  }

  TempDir dir_;
  Json json_ = small_tokenizer();
};

TEST_F(BpeTokenizerJson, MergesByRankThenLeftmost) {
  EXPECT_THAT(encode(json_, "abc"), ElementsAre(257));
  EXPECT_THAT(encode(json_, "bbc"), ElementsAre('b', 258));
  EXPECT_THAT(encode(json_, "abab"), ElementsAre(256, 256));
  EXPECT_THAT(encode(json_, "x ab"), ElementsAre('x', ' ', 256));
  EXPECT_EQ(open(json_)->vocab_size(), 260);
  EXPECT_EQ(open(json_)->eod(), -1);
}

TEST_F(BpeTokenizerJson, ReadsMergesAsTextToo) {
  json_["model"]["merges"] = {"a b", "ab c"};
  EXPECT_THAT(encode(json_, "abcbc"), ElementsAre(257, 'b', 'c'));
}

TEST_F(BpeTokenizerJson, FolderWithTokenizerJson) {
  open(json_);
  EXPECT_EQ(open_tokenizer(dir_.path().string())->vocab_size(), 260);
}

TEST_F(BpeTokenizerJson, AddPrefixSpace) {
  json_["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_THAT(encode(json_, "a"), ElementsAre(259));
  EXPECT_THAT(encode(json_, " a"), ElementsAre(259));
}

TEST_F(BpeTokenizerJson, IgnoreMergesTakesWholePieces) {
  json_["model"]["merges"] = Json::array();
  EXPECT_THAT(encode(json_, "abc"), ElementsAre('a', 'b', 'c'));
  json_["model"]["ignore_merges"] = true;
  EXPECT_THAT(encode(json_, "abc abcd"), ElementsAre(257, ' ', 'a', 'b', 'c', 'd'));
}

TEST_F(BpeTokenizerJson, AddedTokensAreCutOutLongestFirst) {
  json_["added_tokens"] = Json::parse(R"([
    {"id": 260, "content": "<x>", "special": true},
    {"id": 261, "content": "<x>>", "special": true},
    {"id": 262, "content": "  ", "normalized": true},
    {"id": 263, "content": "<|endoftext|>", "special": true}])");
  EXPECT_THAT(encode(json_, "a<x>ab<x>>b  <x"),
              ElementsAre('a', 260, 256, 261, 'b', 262, '<', 'x'));
  EXPECT_EQ(open(json_)->eod(), 263);
  EXPECT_EQ(open(json_)->vocab_size(), 264);
  EXPECT_EQ(open(json_)->decode(std::vector<int32_t>{260, 257, 262}), "<x>abc  ");
}

TEST_F(BpeTokenizerJson, NfcIsAppliedBeforeNormalizedTokensOnly) {
  json_["normalizer"] = Json::parse(R"({"type": "Sequence", "normalizers": [{"type": "NFC"}]})");
  EXPECT_THAT(encode(json_, "e\u0301"), ElementsAre(0xc3, 0xa9));
  json_["added_tokens"] = Json::parse(R"([
    {"id": 260, "content": "e\u0301", "normalized": true},
    {"id": 261, "content": "u\u0301", "normalized": false}])");
  EXPECT_THAT(encode(json_, "\u00e9e\u0301u\u0301\u00fa"), ElementsAre(260, 260, 261, 0xc3, 0xba));
}

TEST_F(BpeTokenizerJson, RefusesOtherKindsByName) {
  const auto with = [&](const char* pointer, const Json& value) {
    Json json = json_;
    json[Json::json_pointer(pointer)] = value;
    return json;
  };
  for (const char* type : {"Unigram", "WordPiece", "WordLevel"}) {
    expect_refused(with("/model/type", type), type);
  }
  expect_refused(with("/model/byte_fallback", true), "byte_fallback");
  expect_refused(with("/model/dropout", 0.1), "dropout");
  expect_refused(with("/model/end_of_word_suffix", "</w>"), "end_of_word_suffix");
  expect_refused(with("/model/continuing_subword_prefix", "##"), "continuing_subword_prefix");
  expect_refused(with("/normalizer", {{"type", "Lowercase"}}), "normalizer Lowercase");
  expect_refused(with("/pre_tokenizer", nullptr), "missing pre_tokenizer");
  expect_refused(with("/pre_tokenizer/type", "Metaspace"), "pre_tokenizer Metaspace");
  expect_refused(with("/pre_tokenizer/use_regex", false), "use_regex");
  for (const char* key : {"single_word", "lstrip", "rstrip"}) {
    expect_refused(with("/added_tokens", {{{"id", 260}, {"content", "<x>"}, {key, true}}}), key);
  }
}

TEST_F(BpeTokenizerJson, RefusesDamagedFiles) {
  const auto with_merge = [&](const Json& merge) {
    Json json = json_;
    json["model"]["merges"].push_back(merge);
    return json;
  };
  expect_refused(with_merge({"a", "zz"}), "'azz', which is not in the vocabulary");
  expect_refused(with_merge("abc"), "'abc' is not two tokens");
  expect_refused(with_merge("a b c"), "'a b c' is not two tokens");
  expect_refused(with_merge(7), "not a tokenizer.json");

  Json json = json_;
  json["model"]["vocab"].erase("a");
  expect_refused(json, "no token 'a' for byte 97");
  json = json_;
  json["model"]["vocab"]["ab"] = "x";
  expect_refused(json, "does not map 'ab' to a token id");
  json["model"]["vocab"]["ab"] = 1.5;
  expect_refused(json, "does not map 'ab' to a token id");
  json["model"]["vocab"]["ab"] = -1;
  expect_refused(json, "'ab' has the id -1");
  json["model"]["vocab"]["ab"] = 1 << 30;
  expect_refused(json, "'ab' has the id 1073741824");
  json["model"]["vocab"]["ab"] = 257;
  expect_refused(json, "have the same id 257");

  write_bytes(dir_ / "tokenizer.json", "{");
  expect_error(ExitCode::Data, {"tokenizer.json", "not a JSON file"},
               [&] { open_tokenizer(dir_ / "tokenizer.json"); });
}

TEST(BpeFiles, PairOfVocabularyAndMerges) {
  TempDir dir;
  write_bytes(dir / "vocab.json", small_vocab().dump());
  expect_error(ExitCode::Data, {"vocab.json", "no vocab.bpe or merges.txt beside it"},
               [&] { open_tokenizer(dir / "vocab.json"); });
  write_bytes(dir / "merges.txt", "#version: 0.2\r\na b\r\nab c\r\n");
  std::vector<int32_t> ids;
  open_tokenizer(dir / "vocab.json")->encode("abcab", ids);
  EXPECT_THAT(ids, ElementsAre(257, 256));
  write_bytes(dir / "merges.txt", "a b\nab\n");
  expect_error(ExitCode::Data, {"merges.txt", "merge 2 'ab'"},
               [&] { open_tokenizer(dir / "vocab.json"); });
  write_bytes(dir / "vocab.json", "[1]");
  expect_error(ExitCode::Data, {"vocab.json"}, [&] { open_tokenizer(dir / "vocab.json"); });
}

// The definition, as slow as it reads: join the best pair, leftmost first, until there is none.
std::vector<std::string> merge_slowly(const BpeModel& model, std::vector<std::string> tokens) {
  while (true) {
    size_t best_rank = std::numeric_limits<size_t>::max(), best = 0;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      for (size_t rank = 0; rank < model.merges.size(); ++rank) {
        if (model.merges[rank] == std::pair(tokens[i], tokens[i + 1]) && rank < best_rank) {
          best_rank = rank;
          best = i;
        }
      }
    }
    if (best_rank == std::numeric_limits<size_t>::max()) return tokens;
    tokens[best] += tokens[best + 1];
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(BpeTokenizer, HeapEqualsTheDefinition) {
  BpeModel model{.file = "random"};
  for (int b = 0; b < 256; ++b) model.vocab[spell_bytes(std::string(1, static_cast<char>(b)))] = b;
  std::mt19937 rng(5);
  std::vector<std::string> tokens{"a", "b", "c"};
  while (tokens.size() < 40) {
    const std::string left = tokens[rng() % tokens.size()], right = tokens[rng() % tokens.size()];
    if (!model.vocab.emplace(left + right, 256 + static_cast<int>(tokens.size())).second) continue;
    model.merges.emplace_back(left, right);
    tokens.push_back(left + right);
  }
  BpeTokenizer tokenizer(model);
  for (int trial = 0; trial < 200; ++trial) {
    std::string text;
    std::vector<std::string> letters;
    for (size_t i = 0; i < 1 + static_cast<size_t>(trial) / 2; ++i) {
      letters.emplace_back(1, "abc"[rng() % 3]);
      text += letters.back();
    }
    std::vector<int32_t> ids, expected;
    tokenizer.encode(text, ids);
    for (const std::string& token : merge_slowly(model, letters)) {
      expected.push_back(model.vocab.at(token));
    }
    EXPECT_EQ(ids, expected) << text;
  }
}

}  // namespace
}  // namespace ferry
