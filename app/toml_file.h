#pragma once

// Configuration text that came from elsewhere (a checkpoint, a converted model) as a file that
// read_config can read, removed with this object.

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/check.h"

namespace ferry {

class TomlFile {
 public:
  /// Throws Error(ExitCode::Storage) if it cannot be written.
  explicit TomlFile(const std::string& text)
      : path_((std::filesystem::temp_directory_path() / "ferry-XXXXXX.toml").string()) {
    const int descriptor = ::mkstemps(path_.data(), 5);
    if (descriptor < 0)
      fail(ExitCode::Storage, "error: cannot make ", path_, ": ", std::strerror(errno));
    ::close(descriptor);
    std::ofstream out(path_);
    out << text << std::flush;
    if (out) return;
    remove();
    fail(ExitCode::Storage, "error: cannot write ", path_, ": is the disk full?");
  }
  ~TomlFile() { remove(); }
  TomlFile(const TomlFile&) = delete;
  TomlFile& operator=(const TomlFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  void remove() const {
    std::error_code ignored;  // a stray file among temporary ones does no harm
    std::filesystem::remove(path_, ignored);
  }
  std::string path_;
};

}  // namespace ferry
