#pragma once

// A file system that writes no faster than it is told to, around another one: to see what a slow
// disk does to a run.

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/forwarding_file_system.h"

namespace ferry {

class SlowFileSystem final : public ForwardingFileSystem {
 public:
  /// `real` outlives this, and this its files. All files together are written with at most this
  /// many bytes per second, greater than 0.
  SlowFileSystem(FileSystem& real, double bytes_per_second)
      : ForwardingFileSystem(real), bytes_per_second_(bytes_per_second) {}

  std::unique_ptr<File> create(const Path& path) override;

  /// Blocks until the disk would have taken so many bytes more. Any thread.
  void take_time_for(size_t bytes);

 private:
  const double bytes_per_second_;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point free_at_{};  // the disk has done what it was given
};

}  // namespace ferry
