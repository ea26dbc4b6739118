#include "app/data/text_reader.h"

#include "app/data/utf8.h"
#include "core/check.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

namespace ferry {
namespace {

bool is_text(const std::string& path) { return path.ends_with(".txt"); }

bool is_json_lines(const std::string& path) {
  return path.ends_with(".jsonl") || path.ends_with(".json");
}

}  // namespace

TextReader::TextReader(std::vector<std::string> paths, std::string json_key)
    : paths_(std::move(paths)), json_key_(std::move(json_key)) {
  for (const std::string& path : paths_) {
    if (!std::filesystem::is_regular_file(path)) {
      fail(ExitCode::Data, "there is no text file ", path);
    }
    if (!is_text(path) && !is_json_lines(path)) {
      fail(ExitCode::Data, path,
           ": only .jsonl, .json (an object a line) and .txt can be read; "
           "unpack compressed files first");
    }
  }
}

std::string TextReader::position() const { return concat(paths_[file_idx_], ":", line_); }

bool TextReader::next(std::string& text) {
  for (; file_idx_ < paths_.size(); ++file_idx_, line_ = 0) {
    if (line_ == 0) {
      file_ = std::ifstream(paths_[file_idx_], std::ios::binary);
      if (!file_) fail(ExitCode::Data, "cannot open ", paths_[file_idx_]);
      if (is_text(paths_[file_idx_])) {
        text = read_text_file();
        return true;
      }
    }
    std::string line;
    if (!is_text(paths_[file_idx_]) && next_line(line)) {
      text = text_of_line(line);
      return true;
    }
  }
  return false;
}

// The next line that is not blank.
bool TextReader::next_line(std::string& line) {
  do {
    ++line_;
    if (!std::getline(file_, line)) {
      if (file_.bad()) fail(ExitCode::Data, position(), ": cannot be read");
      return false;
    }
  } while (line.find_first_not_of(" \t\r") == std::string::npos);
  return true;
}

std::string TextReader::read_text_file() {
  line_ = 1;
  std::string text{std::istreambuf_iterator<char>(file_), {}};
  if (file_.bad()) fail(ExitCode::Data, paths_[file_idx_], ": cannot be read");
  require_utf8(text);
  return text;
}

void TextReader::require_utf8(const std::string& text) const {
  const auto invalid = find_invalid_utf8(text);
  if (!invalid) return;
  const auto until = text.begin() + static_cast<std::ptrdiff_t>(*invalid);
  const auto lines = std::count(text.begin(), until, '\n');
  const size_t line_begin = text.rfind('\n', *invalid) + 1;  // npos + 1 is 0
  fail(ExitCode::Data, paths_[file_idx_], ":", line_ + lines, ": byte ", *invalid - line_begin + 1,
       " of the line is not valid UTF-8; convert the file, for example with iconv");
}

std::string TextReader::text_of_line(const std::string& line) const {
  require_utf8(line);
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(line);
  } catch (const nlohmann::json::exception& error) {
    fail(ExitCode::Data, position(), ": malformed JSON: ", error.what());
  }
  const auto value = json.is_object() ? json.find(json_key_) : json.end();
  if (value == json.end()) {
    fail(ExitCode::Data, position(), ": not a JSON object with the key \"", json_key_,
         "\"; --json-key names another");
  }
  if (!value->is_string()) {
    fail(ExitCode::Data, position(), ": the value of \"", json_key_, "\" is not a string");
  }
  return value->get<std::string>();
}

}  // namespace ferry
