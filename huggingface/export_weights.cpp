#include "huggingface/export_weights.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/digest.h"
#include "core/check.h"
#include "huggingface/safetensors.h"
#include "huggingface/tensor_links.h"
#include "huggingface/tensor_table.h"

namespace ferry {
namespace {

struct Shard {
  std::string name;
  std::vector<SafeTensor> tensors;
  std::vector<const TensorLink*> links;
  int64_t bytes = 0;
};

void check_tensors(const Checkpoint& checkpoint, const std::vector<TensorLink>& links) {
  std::map<std::string, Shape> wanted;
  std::map<std::string, TensorType> found;
  for (const TensorLink& link : links) wanted[link.name] = link.box.global;
  for (const StoredTensor& stored : checkpoint.manifest().tensors)
    if (stored.name.starts_with("model/")) found[stored.name] = {stored.dtype, stored.shape};
  require_same_tensors(checkpoint.directory().string() + " is not a model of its configuration",
                       wanted, found, {DType::F32});
}

std::vector<Shard> plan_shards(const std::vector<TensorLink>& links, DType dtype,
                               int64_t shard_bytes) {
  std::vector<Shard> shards(1);
  for (const TensorLink& link : links) {
    SafeTensor tensor{link.hf_name, dtype, link.hf_shape, 0};
    if (!shards.back().tensors.empty() && shards.back().bytes + tensor.bytes() > shard_bytes)
      shards.emplace_back();
    Shard& shard = shards.back();
    tensor.begin = shard.bytes;
    shard.bytes += tensor.bytes();
    shard.tensors.push_back(std::move(tensor));
    shard.links.push_back(&link);
  }
  for (size_t i = 0; i < shards.size(); ++i)
    shards[i].name = shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  return shards;
}

void write_shard(const Checkpoint& checkpoint, const Shard& shard, const ExportRequest& request) {
  const Path path = request.directory / shard.name;
  const std::string header = safetensors_header(shard.tensors);
  const auto data_start = static_cast<int64_t>(header.size());
  std::vector<Digest128> digests;
  const auto file = request.file_system->create(path);
  file->write_at(header.data(), header.size(), 0);
  for (size_t i = 0; i < shard.tensors.size(); ++i) {
    const SafeTensor& tensor = shard.tensors[i];
    const TensorLink& link = *shard.links[i];
    std::vector<float> values(static_cast<size_t>(link.box.numel()));
    const SliceToLoad slice{link.name,       DType::F32,      link.box.global,
                            link.box.offset, link.box.extent, values.data()};
    checkpoint.load({&slice, 1});
    std::vector<BFloat16> narrow;
    const void* data = values.data();
    if (tensor.dtype == DType::BF16) {
      narrow.reserve(values.size());
      for (const float value : values) narrow.emplace_back(value);
      data = narrow.data();
    }
    digests.push_back(chunk_digest(data, static_cast<size_t>(tensor.bytes())));
    file->write_at(data, static_cast<size_t>(tensor.bytes()), data_start + tensor.begin);
  }
  file->sync();
  file->close();

  const auto written = request.file_system->open(path);
  written->drop_cache();
  const SafeHeader read = read_safetensors_header(*written, path.string());
  CHECK(read.tensors.size() == shard.tensors.size(), path.string(), " has ", read.tensors.size(),
        " tensors");
  for (size_t i = 0; i < shard.tensors.size(); ++i) {
    const SafeTensor& tensor = shard.tensors[i];
    std::vector<char> bytes(static_cast<size_t>(tensor.bytes()));
    written->read_at(bytes.data(), bytes.size(), read.data_start + tensor.begin);
    if (read.tensors[i].name != tensor.name ||
        chunk_digest(bytes.data(), bytes.size()) != digests[i])
      fail(ExitCode::Storage, "error: ", path.string(), " reads back wrong\n  --> tensor ",
           tensor.name, "\n  why : the storage lost or changed bytes\n  try : another file system");
  }
}

std::string index_text(const std::vector<Shard>& shards, int64_t bytes) {
  std::map<std::string, std::string> places;
  for (const Shard& shard : shards)
    for (const SafeTensor& tensor : shard.tensors) places[tensor.name] = shard.name;
  const nlohmann::ordered_json json = {{"metadata", {{"total_size", bytes}}},
                                       {"weight_map", places}};
  return json.dump(2) + "\n";
}

}  // namespace

ExportReport export_weights(const Checkpoint& checkpoint, const ModelDescription& model,
                            const ExportRequest& request) {
  CHECK(request.dtype == DType::BF16 || request.dtype == DType::F32, "dtype ",
        name_of(request.dtype));
  const std::vector<TensorLink> links = tensor_links(model);
  check_tensors(checkpoint, links);
  const std::vector<Shard> shards = plan_shards(links, request.dtype, request.shard_bytes);
  ExportReport report;
  report.num_tensors = static_cast<int64_t>(links.size());
  for (const Shard& shard : shards) {
    write_shard(checkpoint, shard, request);
    report.bytes += shard.bytes;
    report.files.push_back(shard.name);
  }
  if (shards.size() > 1) {
    const std::string name = "model.safetensors.index.json";
    write_text(*request.file_system, request.directory / name, index_text(shards, report.bytes));
    report.files.push_back(name);
  }
  return report;
}

}  // namespace ferry
