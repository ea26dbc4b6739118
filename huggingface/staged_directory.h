#pragma once

// A directory that appears whole or not at all: it is filled as DIR.partial and renamed at the end.

#include "checkpoint/file_system.h"

namespace ferry {

class StagedDirectory {
 public:
  /// Makes `directory`.partial. Throws Error(ExitCode::Usage) if either is there already.
  explicit StagedDirectory(const Path& directory, FileSystem& file_system = posix_file_system());
  /// Removes what was not published.
  ~StagedDirectory();
  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;

  const Path& partial() const { return partial_; }
  /// Syncs the names in it and renames it to its final name.
  void publish();

 private:
  FileSystem& file_system_;
  Path final_;
  Path partial_;
  bool is_published_ = false;
};

}  // namespace ferry
