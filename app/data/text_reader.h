#pragma once

// Documents out of text files.

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace ferry {

/// Reads `.jsonl` (or `.json` with an object a line; the text is under one key, blank lines are
/// skipped) and `.txt` (the file is one document). Errors are Error(Data) with file and line.
class TextReader {
 public:
  /// Throws for a file that is missing or of another kind before anything is read.
  TextReader(std::vector<std::string> paths, std::string json_key);

  /// The next document, always valid UTF-8; false after the last one.
  bool next(std::string& text);

  /// "FILE:LINE" of the last document.
  std::string position() const;

 private:
  bool next_line(std::string& line);
  std::string read_text_file();
  std::string text_of_line(const std::string& line) const;
  void require_utf8(const std::string& text) const;

  std::vector<std::string> paths_;
  std::string json_key_;
  size_t file_idx_ = 0;  // the file being read
  int64_t line_ = 0;     // the line just read, from 1; 0: the file is not open yet
  std::ifstream file_;
};

}  // namespace ferry
