#pragma once

// A file system that does everything as another one does: the base of those that do one thing
// differently.

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace ferry {

class ForwardingFileSystem : public FileSystem {
 public:
  /// `real` outlives this.
  explicit ForwardingFileSystem(FileSystem& real = posix_file_system()) : real_(real) {}

  std::unique_ptr<File> create(const Path& path) override { return real_.create(path); }
  std::unique_ptr<File> open(const Path& path) override { return real_.open(path); }
  void make_directory(const Path& path) override { real_.make_directory(path); }
  void sync_directory(const Path& path) override { real_.sync_directory(path); }
  void rename(const Path& from, const Path& to) override { real_.rename(from, to); }
  void remove_file(const Path& path) override { real_.remove_file(path); }
  void remove_directory(const Path& path) override { real_.remove_directory(path); }
  bool exists(const Path& path) override { return real_.exists(path); }
  std::vector<DirectoryEntry> list(const Path& path) override { return real_.list(path); }
  StorageStatus status(const Path& path) override { return real_.status(path); }

 protected:
  FileSystem& real_;
};

}  // namespace ferry
