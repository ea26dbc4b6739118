#pragma once

// A file that appears under its name only when it is complete and on the disk.

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

namespace ferry {

/// Writes to a temporary name beside `path`. `finish` makes the bytes durable, `publish` gives them
/// their name. Without `publish` the destructor removes the temporary file. Failures (full disk,
/// no permission, missing folder) throw Error(Storage) that names the file.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);
  template <class T>
  void write_values(std::span<const T> values) {
    write(std::as_bytes(values));
  }

  void finish();   // flush and fsync; nothing can be written after it
  void publish();  // after finish: rename to `path` and fsync the folder

 private:
  void flush();

  std::filesystem::path path_, temporary_;
  int fd_ = -1;
  std::vector<std::byte> buffer_;
};

}  // namespace ferry
