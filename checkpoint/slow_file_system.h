#pragma once

// A file system that writes no faster than it is told to, around another one: to see what a slow
// disk does to a run.

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace ferry {

class SlowFileSystem final : public FileSystem {
 public:
  /// `real` outlives this, and this its files. All files together are written with at most this
  /// many bytes per second, greater than 0.
  SlowFileSystem(FileSystem& real, double bytes_per_second)
      : real_(real), bytes_per_second_(bytes_per_second) {}

  std::unique_ptr<File> create(const Path& path) override;
  std::unique_ptr<File> open(const Path& path) override { return real_.open(path); }
  void make_directory(const Path& path) override { real_.make_directory(path); }
  void sync_directory(const Path& path) override { real_.sync_directory(path); }
  void rename(const Path& from, const Path& to) override { real_.rename(from, to); }
  void remove_file(const Path& path) override { real_.remove_file(path); }
  void remove_directory(const Path& path) override { real_.remove_directory(path); }
  bool exists(const Path& path) override { return real_.exists(path); }
  std::vector<DirectoryEntry> list(const Path& path) override { return real_.list(path); }
  StorageStatus status(const Path& path) override { return real_.status(path); }

  /// Blocks until the disk would have taken so many bytes more. Any thread.
  void take_time_for(size_t bytes);

 private:
  FileSystem& real_;
  const double bytes_per_second_;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point free_at_{};  // the disk has done what it was given
};

}  // namespace ferry
