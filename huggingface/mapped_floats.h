#pragma once

// Float32 values of any number, in pages that the kernel may write to disk.

#include <cstdint>
#include <span>

#include "checkpoint/file_system.h"

namespace ferry {

class MappedFloats {
 public:
  /// Zeros, which take no memory as long as they are only read.
  static MappedFloats zeros(int64_t count);
  /// Backed by a file without a name in `directory`; its space is reserved here, so that a full
  /// disk is Error(ExitCode::Storage) and not a signal later.
  static MappedFloats in_file(const Path& directory, int64_t count);
  ~MappedFloats();
  MappedFloats(MappedFloats&& other) noexcept;
  MappedFloats& operator=(MappedFloats&&) = delete;

  float* data() const { return data_; }

 private:
  MappedFloats(float* data, int64_t bytes) : data_(data), bytes_(bytes) {}
  float* data_;
  int64_t bytes_;
};

}  // namespace ferry
