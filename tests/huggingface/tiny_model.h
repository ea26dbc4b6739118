#pragma once

// A model of each family, small enough for a unit test, its checkpoint, and files to spoil.

#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/directory.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "core/comm/control.h"
#include "huggingface/safetensors.h"
#include "huggingface/tensor_links.h"
#include "tests/support/temp_dir.h"

namespace ferry::testing {

inline ModelDescription tiny_model(HfFamily family) {
  ModelDescription model;
  model.layers = 2;
  model.hidden = 8;
  model.heads = 2;
  model.kv_heads = 1;
  model.head_dim = 4;
  model.vocab = 10;
  model.seq = 16;
  model.dense_ffn = 6;
  model.experts = 3;
  model.top_k = 2;
  model.expert_ffn = 5;
  model.is_moe_layer = {true, true};
  model.norm_eps = 1e-6;
  model.rope_theta = 1e6;
  model.aux_coeff = 0.01;
  if (family == HfFamily::Qwen3Moe) {
    model.qk_norm = "head";
    model.is_moe_layer = {false, true};
  } else if (family == HfFamily::Olmoe) {
    model.qk_norm = "full";
    model.renormalise = false;
  }
  return model;
}

inline const HfFamily kFamilies[] = {HfFamily::Mixtral, HfFamily::Qwen3Moe, HfFamily::Olmoe};

/// A checkpoint of random weights, or of those that `change` makes of the tensors by name.
using Weights = std::map<std::string, std::pair<Shape, std::vector<float>>>;

inline Weights random_weights(const ModelDescription& model) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  Weights weights;
  for (const TensorLink& link : tensor_links(model)) {
    auto& [shape, values] = weights[link.name];
    if (!values.empty()) continue;
    shape = link.box.global;
    for (int64_t i = 0; i < shape.numel(); ++i) values.push_back(normal(random));
  }
  return weights;
}

inline Checkpoint save_weights(const Path& run, const Weights& weights) {
  std::vector<SliceToSave> slices;
  for (const auto& [name, weight] : weights) {
    const auto& [shape, values] = weight;
    slices.push_back({name, DType::F32, shape, whole_box(shape).offset, shape, values.data()});
  }
  SoloControl control;
  SaveRequest request;
  request.run_dir = run;
  request.attempt = begin_attempt(run, control).number;
  request.slices = slices;
  request.state = {{"step", int64_t{0}}};
  return Checkpoint::open(save_checkpoint(request, control).directory);
}

/// Digests of the weights by name.
inline std::map<std::string, std::string> weight_digests(const Checkpoint& checkpoint) {
  std::map<std::string, std::string> digests;
  for (const StoredTensor& tensor : checkpoint.manifest().tensors)
    if (tensor.name.starts_with("model/")) digests[tensor.name] = to_hex(tensor.digest);
  return digests;
}

/// A safetensors file with this header text and so many bytes of data.
inline void write_file(const Path& path, const std::string& header, size_t data_bytes) {
  const uint64_t size = header.size();
  std::string bytes(sizeof(size), '\0');
  std::memcpy(bytes.data(), &size, sizeof(size));
  write_text(posix_file_system(), path, bytes + header + std::string(data_bytes, '\0'));
}

/// The message of the error that `body` throws, with its exit code in front: "4: error: ...".
inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return concat(static_cast<int>(error.code()), ": ", error.what());
  }
  return "no error";
}

}  // namespace ferry::testing
