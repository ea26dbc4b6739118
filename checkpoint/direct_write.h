#pragma once

// Writing past the page cache (O_DIRECT). Filling it with new pages costs a processor more than the
// disk takes, and a checkpoint would push everything else out of it.

#include <cstdint>
#include <filesystem>
#include <mutex>

namespace ferry {

/// What O_DIRECT wants places in memory and in the file to be multiples of.
inline constexpr int64_t kBlockBytes = 4096;

/// A second descriptor of a file that is being written. Several threads may use it.
class DirectWrite {
 public:
  DirectWrite() = default;
  DirectWrite(const DirectWrite&) = delete;
  DirectWrite& operator=(const DirectWrite&) = delete;
  /// Closes: what was written so needs no report of closing.
  ~DirectWrite();

  /// Writes whole blocks from the front of `data` and returns how many bytes: 0 if the file system
  /// has no such writes, or `data` or `position` is not at a multiple of kBlockBytes; -1, with
  /// errno, on failure. The rest, if any, is to be written in the usual way.
  int64_t write(const std::filesystem::path& path, const void* data, int64_t bytes,
                int64_t position);

 private:
  std::once_flag opened_;
  int fd_ = -1;
};

}  // namespace ferry
