#pragma once

// The header of a safetensors file: a length (u64), that many bytes of JSON, then the data of all
// tensors without gaps. A file from outside is not trusted: nothing of it is used before the whole
// header has been checked against the size of the file.

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "core/dtype.h"
#include "core/shape.h"

namespace ferry {

struct SafeTensor {
  std::string name;
  DType dtype = DType::F32;  // F32 or BF16
  Shape shape;               // 1 to 4 dims
  int64_t begin = 0;         // bytes from the first byte of data

  int64_t bytes() const { return shape.numel() * static_cast<int64_t>(size_of(dtype)); }
};

struct SafeHeader {
  int64_t data_start = 0;           // in the file
  std::vector<SafeTensor> tensors;  // in the order of the data
};

/// The bytes before the data, padded so that data begins at a multiple of 8. The tensors lie one
/// after the other from 0 on.
std::string safetensors_header(const std::vector<SafeTensor>& tensors);

/// Throws Error(ExitCode::Storage) unless the file is a header and the data it announces, exactly:
/// lengths, types, names of [A-Za-z0-9_.-], no name or key twice, no overlap, no gap, no rest.
SafeHeader read_safetensors_header(const File& file, const std::string& where);

/// What is wrong with the name of a tensor, or an empty string.
std::string hf_name_defect(const std::string& name);

}  // namespace ferry
