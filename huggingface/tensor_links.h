#pragma once

// Which tensor of a Hugging Face model is which part of which of ours. Every one of theirs is a box
// of one of ours with the same elements in the same order, so converting only copies:
//   q_proj, k_proj, v_proj         rows of layers/N/attention/qkv/weight
//   gate, up of expert e           rows of layers/N/moe/experts/fc1/weight [e]
//   down of expert e               layers/N/moe/experts/fc2/weight [e]

#include <string>
#include <vector>

#include "checkpoint/slice.h"
#include "huggingface/model_description.h"

namespace ferry {

struct TensorLink {
  std::string hf_name;  // "model.layers.0.self_attn.q_proj.weight"
  Shape hf_shape;
  std::string name;  // in checkpoints: "model/layers/0/attention/qkv/weight"
  Box box;           // contiguous, of as many elements as hf_shape
};

/// In the order of the model; the boxes of each of our tensors tile it, in order.
std::vector<TensorLink> tensor_links(const ModelDescription& model);

}  // namespace ferry
