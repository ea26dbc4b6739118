#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <set>

#include "checkpoint/directory.h"
#include "checkpoint/run_id.h"
#include "checkpoint/sha256.h"
#include "core/check.h"

namespace ferry {
namespace {

/// Elements of a shape that was not written by this process; -1 if there are absurdly many.
int64_t checked_numel(const Shape& shape) {
  int64_t product = 1;
  for (const int64_t dim : shape.dims()) {
    if (__builtin_mul_overflow(product, dim, &product) || product > (int64_t{1} << 56)) return -1;
  }
  return product;
}

std::string files_defect(const Manifest& manifest) {
  std::set<std::string> names;
  for (const StoredFile& file : manifest.files) {
    if (!is_checkpoint_file(file.name))
      return concat("'", file.name, "' is no name of a checkpoint file");
    if (!names.insert(file.name).second) return concat("file ", file.name, " is listed twice");
    if (file.bytes < 0) return concat("file ", file.name, " has a negative size");
  }
  return "";
}

std::string slice_defect(const Manifest& manifest, const StoredTensor& tensor,
                         const StoredSlice& slice) {
  if (slice.file_idx < 0 || slice.file_idx >= static_cast<int>(manifest.files.size())) {
    return concat("a slice names file number ", slice.file_idx, " of ", manifest.files.size());
  }
  const StoredFile& file = manifest.files[static_cast<size_t>(slice.file_idx)];
  const int64_t bytes = tensor.bytes(slice);
  if (slice.address < 0 || bytes > file.bytes || slice.address > file.bytes - bytes) {
    return concat("slice ", slice.dataset, " does not lie inside ", file.name);
  }
  const int64_t num_chunks = (bytes + manifest.chunk_bytes - 1) / manifest.chunk_bytes;
  if (static_cast<int64_t>(slice.chunks.size()) != num_chunks) {
    return concat("slice ", slice.dataset, " has ", slice.chunks.size(), " digests for ",
                  num_chunks, " chunks");
  }
  return "";
}

std::string tensor_defect(const Manifest& manifest, const StoredTensor& tensor) {
  if (const std::string defect = name_defect(tensor.name); !defect.empty()) return defect;
  if (checked_numel(tensor.shape) < 1) return concat("impossible shape ", tensor.shape);
  std::vector<Box> boxes;
  for (const StoredSlice& slice : tensor.slices) boxes.push_back(tensor.box(slice));
  if (const std::string defect = tiling_defect(tensor.shape, boxes); !defect.empty()) return defect;
  for (const StoredSlice& slice : tensor.slices) {
    if (const std::string defect = slice_defect(manifest, tensor, slice); !defect.empty())
      return defect;
  }
  return "";
}

std::string describe(const StateValue& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return fmt::format("i64 {}", *integer);
  if (const auto* number = std::get_if<double>(&value)) {
    return fmt::format("f64 {:016x}", std::bit_cast<uint64_t>(*number));
  }
  return "text " + sha256(std::get<std::string>(value));
}

}  // namespace

int64_t Manifest::total_bytes() const {
  int64_t sum = 0;
  for (const StoredFile& file : files) sum += file.bytes;
  return sum;
}

std::string root_digest(const Manifest& manifest) {
  std::string text = fmt::format("ferry-state 1\nstep {}\n", manifest.step);
  for (const StoredTensor& tensor : manifest.tensors) {
    text += fmt::format("tensor {} {} {} {}\n", tensor.name, name_of(tensor.dtype),
                        fmt::join(tensor.shape.dims(), "x"), to_hex(tensor.digest));
  }
  for (const auto& [name, value] : manifest.state) {
    text += fmt::format("scalar {} {}\n", name, describe(value));
  }
  return sha256(text);
}

std::string config_digest(const std::string& config) {
  std::string values, line;
  bool in_string = false;
  const auto end_line = [&] {
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (!line.empty()) values += line + "\n";
    line.clear();
    in_string = false;
  };
  for (size_t i = 0; i < config.size(); ++i) {
    const char c = config[i];
    if (c == '\n') {
      end_line();
    } else if (c == '#' && !in_string) {
      i = std::min(config.find('\n', i), config.size()) - 1;
    } else {
      line += c;
      if (c == '"') in_string = !in_string;
      if (c == '\\' && in_string && i + 1 < config.size() && config[i + 1] != '\n')
        line += config[++i];
    }
  }
  end_line();
  return sha256(values);
}

std::vector<Region> regions_of(const Manifest& manifest, int file_idx) {
  std::vector<Region> regions;
  for (const StoredTensor& tensor : manifest.tensors) {
    for (const StoredSlice& slice : tensor.slices) {
      if (slice.file_idx == file_idx) regions.push_back({slice.address, tensor.bytes(slice)});
    }
  }
  std::sort(regions.begin(), regions.end(),
            [](const Region& a, const Region& b) { return a.address < b.address; });
  return regions;
}

std::string manifest_defect(const Manifest& manifest) {
  if (!is_run_id(manifest.run)) return concat("'", manifest.run, "' is no name of a run");
  if (manifest.parent && !is_run_id(manifest.parent->run))
    return concat("'", manifest.parent->run, "' is no name of the parent's run");
  if (manifest.step < 0) return "the step is negative";
  if (manifest.chunk_bytes < 8 || manifest.chunk_bytes % 8 != 0) {
    return concat("chunks of ", manifest.chunk_bytes, " bytes");
  }
  if (const std::string defect = files_defect(manifest); !defect.empty()) return defect;
  for (const auto& [name, value] : manifest.state) {
    if (const std::string defect = name_defect(name); !defect.empty()) {
      return concat("scalar '", name, "': ", defect);
    }
  }
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    const StoredTensor& tensor = manifest.tensors[i];
    if (i > 0 && manifest.tensors[i - 1].name >= tensor.name) {
      return concat("tensor ", tensor.name, " is out of order or listed twice");
    }
    if (const std::string defect = tensor_defect(manifest, tensor); !defect.empty()) {
      return concat("tensor '", tensor.name, "': ", defect);
    }
  }
  for (size_t f = 0; f < manifest.files.size(); ++f) {
    const std::vector<Region> regions = regions_of(manifest, static_cast<int>(f));
    for (size_t i = 1; i < regions.size(); ++i) {
      if (regions[i].address < regions[i - 1].address + regions[i - 1].bytes) {
        return concat("slices overlap in ", manifest.files[f].name);
      }
    }
  }
  return "";
}

}  // namespace ferry
