#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/slice.h"
#include "core/check.h"

namespace ferry::testing {

/// The bytes of all slices by name and place, each read once.
inline std::map<std::string, std::string> contents(const std::vector<SliceToSave>& slices) {
  std::map<std::string, std::string> all;
  for (const SliceToSave& slice : slices) {
    const size_t bytes = static_cast<size_t>(slice.extent.numel()) * size_of(slice.dtype);
    std::string text(bytes, '\0');
    const void* from = slice.data;
    if (slice.source != nullptr)
      from = slice.source->read(slice.data, static_cast<int64_t>(bytes), text.data());
    if (from != text.data()) std::memcpy(text.data(), from, bytes);
    all[concat(slice.name, slice.offset)] = text;
  }
  return all;
}

}  // namespace ferry::testing
