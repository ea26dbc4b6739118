#pragma once

// A run directory with a checkpoint of random weights, for ferry export and ferry import.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "app/huggingface_model.h"
#include "checkpoint/directory.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "core/comm/control.h"
#include "huggingface/tensor_links.h"
#include "tests/app/small_run.h"

namespace ferry::testing {

struct CommandResult {
  int code = 0;
  std::string message;
};

inline CommandResult run_command(const std::function<void(CLI::App&)>& add,
                                 std::vector<std::string> words) {
  CLI::App root("ferry");
  add(root);
  try {
    std::reverse(words.begin(), words.end());  // the library takes them from the back
    root.parse(words);
  } catch (const Error& error) {
    return {static_cast<int>(error.code()), error.what()};
  } catch (const CLI::ParseError& error) {
    return {2, error.what()};
  }
  return {};
}

/// Saves RUN/ckpt/step-00000006 with weights of one configuration, and the text of another if
/// given.
inline Checkpoint save_random_run(const RunConfig& config, const RunConfig* stored = nullptr) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::map<std::string, std::pair<Shape, std::vector<float>>> weights;
  for (const TensorLink& link : tensor_links(describe_model(config))) {
    auto& [shape, values] = weights[link.name];
    shape = link.box.global;
    if (values.empty())
      for (int64_t i = 0; i < shape.numel(); ++i) values.push_back(normal(random));
  }
  std::vector<SliceToSave> slices;
  for (const auto& [name, weight] : weights)
    slices.push_back({name, DType::F32, weight.first, whole_box(weight.first).offset, weight.first,
                      weight.second.data()});
  SoloControl control;
  SaveRequest request;
  request.run_dir = config.run.dir;
  request.step = 6;
  request.attempt = begin_attempt(config.run.dir, control).number;
  request.slices = slices;
  request.config = resolved_toml(stored == nullptr ? config : *stored);
  return Checkpoint::open(save_checkpoint(request, control).directory);
}

inline std::map<std::string, std::string> weight_digests(const Checkpoint& checkpoint) {
  std::map<std::string, std::string> digests;
  for (const StoredTensor& tensor : checkpoint.manifest().tensors)
    if (tensor.name.starts_with("model/")) digests[tensor.name] = to_hex(tensor.digest);
  return digests;
}

/// Overrides for a run of each family.
inline const std::vector<std::vector<std::string>> kFamilyRuns = {
    {"moe.layer_freq=1"},
    {"model.qk_norm=head", "model.tie_embeddings=false"},
    {"model.qk_norm=full", "moe.layer_freq=1", "moe.router.pre_softmax=true"}};

}  // namespace ferry::testing
