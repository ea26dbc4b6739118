#pragma once

// A file mapped read-only into memory.

#include <cstddef>
#include <filesystem>
#include <span>

namespace ferry {

/// Owns the mapping. The bytes are valid as long as the object lives and start at a page boundary.
class MappedFile {
 public:
  /// Throws Error(Data) that names the file when it cannot be opened or is not a regular file.
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

}  // namespace ferry
