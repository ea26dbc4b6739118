#include "app/data/bpe_files.h"

#include "app/data/gpt2_scanner.h"
#include "core/check.h"

#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>

namespace ferry {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

Json load_json(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file || fs::is_directory(path)) {
    fail(ExitCode::Data, "cannot open the tokenizer file ", path.string());
  }
  try {
    return Json::parse(file);
  } catch (const Json::exception& error) {
    fail(ExitCode::Data, path.string(), ": not a JSON file: ", error.what());
  }
}

// A field that may be absent or null.
const Json& field(const Json& object, const char* key) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

bool flag(const Json& object, const char* key, bool otherwise = false) {
  const Json& value = field(object, key);
  return value.is_null() ? otherwise : value.get<bool>();
}

std::string text_of(const Json& object, const char* key) {
  const Json& value = field(object, key);
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::pair<std::string, std::string> cut_merge(const fs::path& path, size_t number,
                                              const std::string& line) {
  const size_t space = line.find(' ');
  if (space == 0 || space == std::string::npos || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string::npos) {
    fail(ExitCode::Data, path.string(), ": merge ", number, " '", line, "' is not two tokens");
  }
  return {line.substr(0, space), line.substr(space + 1)};
}

std::unordered_map<std::string, int32_t> read_vocab(const fs::path& path, const Json& object) {
  std::unordered_map<std::string, int32_t> vocab;
  for (const auto& [token, id] : object.items()) {
    if (!object.is_object() || !id.is_number_integer() ||
        !std::in_range<int32_t>(id.get<int64_t>())) {
      fail(ExitCode::Data, path.string(), ": the vocabulary does not map '", token,
           "' to a token id but to ", id.dump());
    }
    vocab.emplace(token, id.get<int32_t>());
  }
  return vocab;
}

// What tokenizer.json says, checked against what is implemented.
class TokenizerJson {
 public:
  explicit TokenizerJson(fs::path path) : path_(std::move(path)), json_(load_json(path_)) {}

  BpeModel read() {
    BpeModel model{.file = path_.string()};
    read_model(model);
    read_normalizer(field(json_, "normalizer"), model);
    read_pre_tokenizer(model);
    read_added_tokens(model);
    return model;
  }

 private:
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(ExitCode::Data, path_.string(), ": ", parts...,
         " is not supported; only byte-level BPE with "
         "GPT-2's pre-tokenizer is");
  }

  void read_model(BpeModel& model) const {
    const Json& bpe = json_.at("model");
    // Old files leave out the type of a BPE.
    const std::string type = bpe.contains("type") ? text_of(bpe, "type") : "BPE";
    if (type != "BPE") refuse("model type ", type);
    if (flag(bpe, "byte_fallback")) refuse("model.byte_fallback");
    if (field(bpe, "dropout").is_number() && bpe["dropout"].get<double>() > 0) {
      refuse("model.dropout");
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& value = field(bpe, key);
      if (!value.is_null() && !value.get<std::string>().empty()) refuse("model.", key);
    }
    model.ignore_merges = flag(bpe, "ignore_merges");
    model.vocab = read_vocab(path_, bpe.at("vocab"));
    for (const Json& merge : bpe.at("merges")) {
      if (merge.is_array()) {
        model.merges.emplace_back(merge.at(0).get<std::string>(), merge.at(1).get<std::string>());
      } else {
        model.merges.push_back(cut_merge(path_, model.merges.size(), merge.get<std::string>()));
      }
    }
  }

  void read_normalizer(const Json& normalizer, BpeModel& model) const {
    if (normalizer.is_null()) return;
    const std::string type = text_of(normalizer, "type");
    if (type == "Sequence") {
      for (const Json& part : normalizer.at("normalizers")) read_normalizer(part, model);
    } else if (type == "NFC") {
      model.nfc = true;
    } else {
      refuse("normalizer ", type);
    }
  }

  void read_pre_tokenizer(BpeModel& model) const {
    const Json& pre_tokenizer = field(json_, "pre_tokenizer");
    if (pre_tokenizer.is_null()) refuse("a missing pre_tokenizer");
    const std::string type = text_of(pre_tokenizer, "type");
    if (type != "ByteLevel") refuse("pre_tokenizer ", type);
    if (!flag(pre_tokenizer, "use_regex", true))
      refuse("pre_tokenizer ByteLevel without use_regex");
    model.add_prefix_space = flag(pre_tokenizer, "add_prefix_space", true);
  }

  void read_added_tokens(BpeModel& model) const {
    for (const Json& token : field(json_, "added_tokens")) {
      AddedToken added{.content = token.at("content").get<std::string>(),
                       .id = token.at("id").get<int32_t>(),
                       .normalized = flag(token, "normalized")};
      for (const char* key : {"single_word", "lstrip", "rstrip"}) {
        if (flag(token, key)) refuse("added token '", added.content, "' with ", key);
      }
      if (!added.content.empty()) model.added_tokens.push_back(std::move(added));
    }
  }

  fs::path path_;
  Json json_;
};

// The first of `names` that is in `folder`, or an empty path.
fs::path find_in(const fs::path& folder, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (fs::exists(folder / name)) return folder / name;
  }
  return {};
}

}  // namespace

BpeModel load_tokenizer_json(const fs::path& path) {
  try {
    return TokenizerJson(path).read();
  } catch (const Json::exception& error) {
    fail(ExitCode::Data, path.string(), ": not a tokenizer.json: ", error.what());
  }
}

BpeModel load_vocab_and_merges(const fs::path& vocab, const fs::path& merges) {
  BpeModel model{.file = vocab.string()};
  model.vocab = read_vocab(vocab, load_json(vocab));
  std::ifstream lines(merges, std::ios::binary);
  if (!lines) fail(ExitCode::Data, "cannot open the merges file ", merges.string());
  std::string line;
  for (size_t number = 1; std::getline(lines, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    model.merges.push_back(cut_merge(merges, number, line));
  }
  return model;
}

BpeModel load_bpe_model(const fs::path& path) {
  fs::path file = path;
  if (fs::is_directory(path)) {
    file = find_in(path, {"tokenizer.json", "encoder.json", "vocab.json"});
    if (file.empty()) {
      fail(ExitCode::Data, "the folder ", path.string(),
           " has no tokenizer.json, encoder.json or vocab.json");
    }
  }
  if (!fs::exists(file)) {
    fail(ExitCode::Data, "there is no tokenizer file ", file.string(),
         "; give \"byte\", a tokenizer.json, or a folder with encoder.json and vocab.bpe");
  }
  // "model" is also an ordinary token of a vocabulary, which maps it to a number.
  if (field(load_json(file), "model").is_object()) return load_tokenizer_json(file);
  const fs::path merges = find_in(file.parent_path(), {"vocab.bpe", "merges.txt"});
  if (merges.empty()) {
    fail(ExitCode::Data, file.string(), ": there is no vocab.bpe or merges.txt beside it");
  }
  return load_vocab_and_merges(file, merges);
}

}  // namespace ferry
