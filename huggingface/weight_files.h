#pragma once

// The tensors of a Hugging Face model directory: model.safetensors, or the files that
// model.safetensors.index.json names. Nothing outside the directory is opened, and no symbolic link
// is followed.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "huggingface/safetensors.h"

namespace ferry {

class WeightFiles {
 public:
  /// Checks every header, and that index and files agree. Throws Error(ExitCode::Storage).
  explicit WeightFiles(const Path& directory, FileSystem& file_system = posix_file_system());

  const Path& directory() const { return directory_; }

  struct Place {
    size_t file = 0;
    SafeTensor tensor;
  };
  const std::map<std::string, Place>& tensors() const { return tensors_; }

  /// `count` elements of a tensor, from element `first` on, as float32.
  void read(const Place& place, int64_t first, int64_t count, float* out) const;

 private:
  struct OpenFile {
    std::string name;
    std::unique_ptr<File> file;
    int64_t data_start = 0;
  };
  void add_file(const std::string& name);
  void add_indexed();

  Path directory_;
  FileSystem& file_system_;
  std::vector<OpenFile> files_;
  std::map<std::string, Place> tensors_;
};

}  // namespace ferry
