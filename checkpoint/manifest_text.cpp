#include <fmt/format.h>

#include <array>
#include <cmath>

#include "checkpoint/manifest.h"
#include "checkpoint/run_id.h"
#include "checkpoint/sha256.h"
#include "core/check.h"

namespace ferry {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormatName = "ferry-checkpoint";
constexpr std::string_view kTrailerBegin = ",\n\"sha256\": \"";
constexpr std::string_view kTrailerEnd = "\"\n}\n";
constexpr size_t kTrailerBytes = kTrailerBegin.size() + 64 + kTrailerEnd.size();
constexpr int kMaxDepth = 8;  // the deepest value is a chunk digest, at 6

Json shape_json(const Shape& shape) {
  Json json = Json::array();
  for (const int64_t dim : shape.dims()) json.push_back(dim);
  return json;
}

Shape shape_from_json(const Json& json) {
  std::array<int64_t, Shape::kMaxRank> dims{};
  if (!json.is_array() || json.size() > dims.size()) {
    fail(ExitCode::Storage, "a shape is a list of at most 4 sizes");
  }
  for (size_t d = 0; d < json.size(); ++d) {
    dims[d] = json[d].get<int64_t>();
    if (dims[d] < 0) fail(ExitCode::Storage, "a shape has the negative size ", dims[d]);
  }
  return Shape(std::span<const int64_t>(dims.data(), json.size()));
}

DType dtype_from_name(const std::string& name) {
  for (const DType dtype :
       {DType::F32, DType::F64, DType::BF16, DType::I32, DType::I64, DType::U8}) {
    if (name_of(dtype) == name) return dtype;
  }
  fail(ExitCode::Storage, "unknown dtype '", name, "'");
}

Json state_json(const State& state) {
  Json json = Json::object();
  for (const auto& [name, value] : state) {
    if (const auto* number = std::get_if<double>(&value)) {
      CHECK(std::isfinite(*number), "scalar ", name, " of the training state is not finite");
    }
    std::visit([&, &key = name](const auto& content) { json[key] = content; }, value);
  }
  return json;
}

State state_from_json(const Json& json) {
  State state;
  for (const auto& [name, value] : json.items()) {
    if (value.is_number_integer()) {
      state[name] = value.get<int64_t>();
    } else if (value.is_number_float()) {
      state[name] = value.get<double>();
    } else {
      state[name] = value.get<std::string>();
    }
  }
  return state;
}

constexpr int64_t kFirstVersion = 1;  // has neither "run" nor "config_digest"

Json parent_json(const Manifest& manifest) {
  if (!manifest.parent) return nullptr;
  Json json = {{"step", manifest.parent->step}, {"root", manifest.parent->root}};
  if (manifest.version > kFirstVersion) json["run"] = manifest.parent->run;
  return json;
}

CheckpointName parent_from_json(const Json& json, int64_t version) {
  return {json.at("step").get<int64_t>(), json.at("root").get<std::string>(),
          version > kFirstVersion ? json.at("run").get<std::string>() : kUnknownRun};
}

/// One element a line, so that people can read and compare manifests.
template <class Item>
std::string lines_json(const std::vector<Item>& items) {
  std::string text = "[";
  for (size_t i = 0; i < items.size(); ++i) text += (i ? ",\n" : "\n") + to_json(items[i]).dump();
  return text + "\n]";
}

Manifest manifest_from_json(const Json& json) {
  const Json& version = json.at("version");
  if (json.at("format") != kFormatName) fail(ExitCode::Storage, "it is not of a Ferry checkpoint");
  if (version != kFormatVersion && version != kFirstVersion) {
    fail(ExitCode::Storage, "it has format version ", version.dump(), ", and this program reads ",
         kFirstVersion, " to ", kFormatVersion,
         ": use the version of Ferry that wrote it, or a newer one");
  }
  Manifest manifest;
  version.get_to(manifest.version);
  manifest.run = manifest.version > kFirstVersion ? json.at("run").get<std::string>() : kUnknownRun;
  json.at("writer").get_to(manifest.writer);
  json.at("created").get_to(manifest.created);
  json.at("attempt").get_to(manifest.attempt);
  json.at("step").get_to(manifest.step);
  if (const Json& parent = json.at("parent"); !parent.is_null()) {
    manifest.parent = parent_from_json(parent, manifest.version);
  }
  json.at("layout").get_to(manifest.layout);
  json.at("config").get_to(manifest.config);
  manifest.state = state_from_json(json.at("state"));
  json.at("chunk_bytes").get_to(manifest.chunk_bytes);
  for (const Json& file : json.at("files")) manifest.files.push_back(file_from_json(file));
  for (const Json& tensor : json.at("tensors"))
    manifest.tensors.push_back(tensor_from_json(tensor));
  return manifest;
}

void check_self_digest(const std::string& text) {
  if (text.size() < kTrailerBytes) fail(ExitCode::Storage, "it is truncated");
  const std::string_view all = text;
  const std::string_view body = all.substr(0, all.size() - kTrailerBytes);
  const std::string_view trailer = all.substr(body.size());
  if (!trailer.starts_with(kTrailerBegin) || !trailer.ends_with(kTrailerEnd)) {
    fail(ExitCode::Storage, "it does not end with its digest: it is truncated or was edited");
  }
  if (trailer.substr(kTrailerBegin.size(), 64) != sha256(body)) {
    fail(ExitCode::Storage,
         "its content does not match its own digest: it is damaged or was edited");
  }
}

Manifest parse_checked(const std::string& text) {
  if (static_cast<int64_t>(text.size()) > kMaxManifestBytes) {
    fail(ExitCode::Storage, "it is larger than ", kMaxManifestBytes, " bytes");
  }
  check_self_digest(text);
  const Json json = Json::parse(text, [](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) fail(ExitCode::Storage, "it is nested too deeply");
    return true;
  });
  Manifest manifest = manifest_from_json(json);
  if (const std::string defect = manifest_defect(manifest); !defect.empty()) {
    fail(ExitCode::Storage, defect);
  }
  // One content has one text. This refuses unknown and repeated keys, other number formats, a wrong
  // root digest and whatever else a parser might let pass.
  if (manifest_text(manifest) != text) fail(ExitCode::Storage, "it is not in canonical form");
  return manifest;
}

}  // namespace

Json to_json(const StoredFile& file) {
  return {{"name", file.name}, {"bytes", file.bytes}, {"structure", to_hex(file.structure)}};
}

StoredFile file_from_json(const Json& json) {
  return {json.at("name").get<std::string>(), json.at("bytes").get<int64_t>(),
          digest_from_hex(json.at("structure").get<std::string>())};
}

Json to_json(const StoredTensor& tensor) {
  Json slices = Json::array();
  for (const StoredSlice& slice : tensor.slices) {
    Json chunks = Json::array();
    for (const Digest128& chunk : slice.chunks) chunks.push_back(to_hex(chunk));
    slices.push_back({{"file", slice.file_idx},
                      {"dataset", slice.dataset},
                      {"address", slice.address},
                      {"offset", shape_json(slice.offset)},
                      {"extent", shape_json(slice.extent)},
                      {"chunks", std::move(chunks)}});
  }
  return {{"name", tensor.name},
          {"dtype", name_of(tensor.dtype)},
          {"shape", shape_json(tensor.shape)},
          {"digest", to_hex(tensor.digest)},
          {"slices", std::move(slices)}};
}

StoredTensor tensor_from_json(const Json& json) {
  StoredTensor tensor;
  json.at("name").get_to(tensor.name);
  tensor.dtype = dtype_from_name(json.at("dtype").get<std::string>());
  tensor.shape = shape_from_json(json.at("shape"));
  tensor.digest = digest_from_hex(json.at("digest").get<std::string>());
  for (const Json& part : json.at("slices")) {
    StoredSlice slice;
    part.at("file").get_to(slice.file_idx);
    part.at("dataset").get_to(slice.dataset);
    part.at("address").get_to(slice.address);
    slice.offset = shape_from_json(part.at("offset"));
    slice.extent = shape_from_json(part.at("extent"));
    for (const Json& chunk : part.at("chunks")) {
      slice.chunks.push_back(digest_from_hex(chunk.get<std::string>()));
    }
    tensor.slices.push_back(std::move(slice));
  }
  return tensor;
}

std::string manifest_text(const Manifest& manifest) {
  std::string text = "{";
  const auto add = [&text](std::string_view key, const std::string& value) {
    text += fmt::format("{}\n\"{}\": {}", text.size() > 1 ? "," : "", key, value);
  };
  add("format", Json(kFormatName).dump());
  add("version", Json(manifest.version).dump());
  if (manifest.version > kFirstVersion) add("run", Json(manifest.run).dump());
  add("writer", Json(manifest.writer).dump());
  add("created", Json(manifest.created).dump());
  add("attempt", Json(manifest.attempt).dump());
  add("step", Json(manifest.step).dump());
  add("root", Json(root_digest(manifest)).dump());
  add("parent", parent_json(manifest).dump());
  add("layout", Json(manifest.layout).dump());
  add("config", Json(manifest.config).dump());
  if (manifest.version > kFirstVersion)
    add("config_digest", Json(config_digest(manifest.config)).dump());
  add("state", state_json(manifest.state).dump());
  add("chunk_bytes", Json(manifest.chunk_bytes).dump());
  add("files", lines_json(manifest.files));
  add("tensors", lines_json(manifest.tensors));
  const std::string digest = sha256(text);
  text += kTrailerBegin;
  text += digest;
  text += kTrailerEnd;
  return text;
}

Manifest parse_manifest(const std::string& text, const std::string& where) {
  try {
    return parse_checked(text);
  } catch (const Error& error) {
    fail(error.code(), where, " is refused: ", error.what());
  } catch (const Json::exception& error) {
    fail(ExitCode::Storage, where, " is refused: ", error.what());
  }
}

}  // namespace ferry
