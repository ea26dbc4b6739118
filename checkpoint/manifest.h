#pragma once

// The manifest: what a checkpoint consists of. A directory without a valid one is not a checkpoint.
// Its text is canonical JSON (one content has one text), ends with its own SHA-256, and is read
// strictly: any other byte sequence is refused. docs/checkpoint_format.md describes it for readers
// in other languages.

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "checkpoint/digest.h"
#include "checkpoint/slice.h"
#include "core/dtype.h"
#include "core/shape.h"

namespace ferry {

/// What is written. Version 1, which knew no runs, is read as well.
constexpr int64_t kFormatVersion = 2;
constexpr int64_t kMaxManifestBytes = int64_t{64} << 20;

/// Scalars of the training state by name ("step", "data/position", ...). Doubles must be finite.
using StateValue = std::variant<int64_t, double, std::string>;
using State = std::map<std::string, StateValue>;

struct StoredSlice {
  int file_idx = 0;
  std::string dataset;  // in that file
  int64_t address = 0;  // first byte in that file
  Shape offset;
  Shape extent;
  std::vector<Digest128> chunks;  // of each chunk_bytes of the slice
};

struct StoredTensor {
  std::string name;
  DType dtype = DType::F32;
  Shape shape;
  Digest128 digest;  // the tensor digest of digest.h
  std::vector<StoredSlice> slices;

  Box box(const StoredSlice& slice) const { return {shape, slice.offset, slice.extent}; }
  int64_t bytes(const StoredSlice& slice) const {
    return slice.extent.numel() * static_cast<int64_t>(size_of(dtype));
  }
};

struct StoredFile {
  std::string name;
  int64_t bytes = 0;
  Digest128 structure;  // of all bytes that belong to no slice
};

/// A range of a file that belongs to a slice.
struct Region {
  int64_t address = 0;
  int64_t bytes = 0;
};

/// An earlier checkpoint, by step and root digest, and the run that wrote it (run_id.h).
struct CheckpointName {
  int64_t step = 0;
  std::string root;
  std::string run = {};
};

struct Manifest {
  int64_t version = kFormatVersion;
  std::string run;      // see run_id.h
  std::string writer;   // program and version
  std::string created;  // UTC, ISO 8601
  int64_t attempt = 0;
  int64_t step = 0;
  std::optional<CheckpointName> parent;
  std::string layout;  // how ranks were arranged; information only
  std::string config;  // the complete configuration, TOML
  State state;
  int64_t chunk_bytes = 0;
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;  // sorted by name; slices by offset

  int64_t total_bytes() const;  // of all files
};

/// SHA-256 over names, types, shapes and digests of all tensors and over all scalars: the training
/// state alone. It depends neither on how ranks cut tensors nor on time, attempt or configuration.
std::string root_digest(const Manifest& manifest);

/// SHA-256 of the values of a configuration: its text without comments, blanks at the ends of lines
/// and empty lines.
std::string config_digest(const std::string& config);

std::string manifest_text(const Manifest& manifest);
/// `where` names the file in messages. Throws Error(Storage); a returned manifest is consistent:
/// slices tile their tensors, lie inside their files and do not overlap.
Manifest parse_manifest(const std::string& text, const std::string& where);

/// Where the slices of a file lie, sorted by address.
std::vector<Region> regions_of(const Manifest& manifest, int file_idx);

/// What is inconsistent, or an empty string.
std::string manifest_defect(const Manifest& manifest);

/// Parts of the text, which also travel from the writing ranks to the one that publishes.
nlohmann::ordered_json to_json(const StoredFile& file);
nlohmann::ordered_json to_json(const StoredTensor& tensor);
StoredFile file_from_json(const nlohmann::ordered_json& json);
StoredTensor tensor_from_json(const nlohmann::ordered_json& json);

}  // namespace ferry
