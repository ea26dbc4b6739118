#pragma once

// Files that describe a byte-level BPE with GPT-2's pre-tokenizer: tokenizer.json of Hugging Face,
// or the older pair of a vocabulary (encoder.json, vocab.json) and merges (vocab.bpe, merges.txt).

#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ferry {

/// A token that is found in the text before pre-tokenization. Only tokenizer.json has them; text
/// that looks like a special token is ordinary text otherwise.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool normalized = false;  // looked for after normalisation instead of before it
};

struct BpeModel {
  std::string file;                                         // for messages
  std::unordered_map<std::string, int32_t> vocab;           // spelled in the byte alphabet
  std::vector<std::pair<std::string, std::string>> merges;  // best first, spelled likewise
  std::vector<AddedToken> added_tokens;
  bool nfc = false;
  bool add_prefix_space = false;
  bool ignore_merges = false;  // a piece that is in the vocabulary is one token
};

/// Throws Error(Data) that names file and setting for every tokenizer.json that would be encoded
/// differently here: other models, normalisers, pre-tokenizers, and options that are not supported.
BpeModel load_tokenizer_json(const std::filesystem::path& path);

BpeModel load_vocab_and_merges(const std::filesystem::path& vocab,
                               const std::filesystem::path& merges);

/// Finds out which of the two `path` is: a file of either kind or a folder with one of them.
BpeModel load_bpe_model(const std::filesystem::path& path);

}  // namespace ferry
