#include "huggingface/tensor_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/huggingface/tiny_model.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using testing::tiny_model;

// "their name [shape] <- our name [box]" of the tensors whose name has `part`.
std::vector<std::string> lines_of(const ModelDescription& model, const std::string& part) {
  std::vector<std::string> lines;
  for (const TensorLink& link : tensor_links(model))
    if (link.hf_name.find(part) != std::string::npos)
      lines.push_back(
          concat(link.hf_name, " ", link.hf_shape, " <- ", link.name, " ", to_string(link.box)));
  return lines;
}

TEST(TensorLinks, Mixtral) {
  ModelDescription model = tiny_model(HfFamily::Mixtral);
  model.layers = 1;
  model.is_moe_layer = {true};
  model.experts = 2;
  EXPECT_THAT(
      lines_of(model, ""),
      ElementsAre(
          "model.embed_tokens.weight [10, 8] <- model/embedding/weight [0:10, 0:8] of [10, 8]",
          "model.layers.0.input_layernorm.weight [8] <- model/layers/0/attn_norm/weight [0:8] of "
          "[8]",
          "model.layers.0.self_attn.q_proj.weight [8, 8] <- model/layers/0/attention/qkv/weight "
          "[0:8, 0:8] of [16, 8]",
          "model.layers.0.self_attn.k_proj.weight [4, 8] <- model/layers/0/attention/qkv/weight "
          "[8:12, 0:8] of [16, 8]",
          "model.layers.0.self_attn.v_proj.weight [4, 8] <- model/layers/0/attention/qkv/weight "
          "[12:16, 0:8] of [16, 8]",
          "model.layers.0.self_attn.o_proj.weight [8, 8] <- model/layers/0/attention/proj/weight "
          "[0:8, 0:8] of [8, 8]",
          "model.layers.0.post_attention_layernorm.weight [8] <- model/layers/0/mlp_norm/weight "
          "[0:8] of [8]",
          "model.layers.0.block_sparse_moe.gate.weight [2, 8] <- "
          "model/layers/0/moe/router/weight [0:2, 0:8] of [2, 8]",
          "model.layers.0.block_sparse_moe.experts.0.w1.weight [5, 8] <- "
          "model/layers/0/moe/experts/fc1/weight [0:1, 0:5, 0:8] of [2, 10, 8]",
          "model.layers.0.block_sparse_moe.experts.0.w3.weight [5, 8] <- "
          "model/layers/0/moe/experts/fc1/weight [0:1, 5:10, 0:8] of [2, 10, 8]",
          "model.layers.0.block_sparse_moe.experts.0.w2.weight [8, 5] <- "
          "model/layers/0/moe/experts/fc2/weight [0:1, 0:8, 0:5] of [2, 8, 5]",
          "model.layers.0.block_sparse_moe.experts.1.w1.weight [5, 8] <- "
          "model/layers/0/moe/experts/fc1/weight [1:2, 0:5, 0:8] of [2, 10, 8]",
          "model.layers.0.block_sparse_moe.experts.1.w3.weight [5, 8] <- "
          "model/layers/0/moe/experts/fc1/weight [1:2, 5:10, 0:8] of [2, 10, 8]",
          "model.layers.0.block_sparse_moe.experts.1.w2.weight [8, 5] <- "
          "model/layers/0/moe/experts/fc2/weight [1:2, 0:8, 0:5] of [2, 8, 5]",
          "model.norm.weight [8] <- model/final_norm/weight [0:8] of [8]",
          "lm_head.weight [10, 8] <- model/lm_head/weight [0:10, 0:8] of [10, 8]"));
}

TEST(TensorLinks, Qwen3MoeHasDenseLayersAndNormsOfAHead) {
  const ModelDescription model = tiny_model(HfFamily::Qwen3Moe);
  EXPECT_THAT(
      lines_of(model, "layers.0.mlp"),
      ElementsAre("model.layers.0.mlp.gate_proj.weight [6, 8] <- model/layers/0/mlp/fc1/weight "
                  "[0:6, 0:8] of [12, 8]",
                  "model.layers.0.mlp.up_proj.weight [6, 8] <- model/layers/0/mlp/fc1/weight "
                  "[6:12, 0:8] of [12, 8]",
                  "model.layers.0.mlp.down_proj.weight [8, 6] <- model/layers/0/mlp/fc2/weight "
                  "[0:8, 0:6] of [8, 6]"));
  EXPECT_THAT(lines_of(model, "layers.1.mlp.experts.2"),
              ElementsAre("model.layers.1.mlp.experts.2.gate_proj.weight [5, 8] <- "
                          "model/layers/1/moe/experts/fc1/weight [2:3, 0:5, 0:8] of [3, 10, 8]",
                          "model.layers.1.mlp.experts.2.up_proj.weight [5, 8] <- "
                          "model/layers/1/moe/experts/fc1/weight [2:3, 5:10, 0:8] of [3, 10, 8]",
                          "model.layers.1.mlp.experts.2.down_proj.weight [8, 5] <- "
                          "model/layers/1/moe/experts/fc2/weight [2:3, 0:8, 0:5] of [3, 8, 5]"));
  EXPECT_THAT(lines_of(model, "1.mlp.gate.weight"),
              ElementsAre("model.layers.1.mlp.gate.weight [3, 8] <- "
                          "model/layers/1/moe/router/weight [0:3, 0:8] of [3, 8]"));
  EXPECT_THAT(lines_of(model, "layers.0.self_attn.k_norm"),
              ElementsAre("model.layers.0.self_attn.k_norm.weight [4] <- "
                          "model/layers/0/attention/k_norm/weight [0:4] of [4]"));
}

TEST(TensorLinks, OlmoeHasNormsOfAllHeads) {
  ModelDescription model = tiny_model(HfFamily::Olmoe);
  EXPECT_THAT(lines_of(model, "layers.0.self_attn.q_norm"),
              ElementsAre("model.layers.0.self_attn.q_norm.weight [8] <- "
                          "model/layers/0/attention/q_norm/weight [0:8] of [8]"));
  EXPECT_EQ(lines_of(model, "mlp.experts").size(), 2u * 3 * 3);
  EXPECT_EQ(lines_of(model, "lm_head").size(), 1u);
  model.tie_embeddings = true;
  EXPECT_EQ(lines_of(model, "lm_head").size(), 0u);
}

TEST(TensorLinks, BoxesTileOurTensorsAndAreAsLargeAsTheirs) {
  for (const HfFamily family : testing::kFamilies) {
    std::map<std::string, std::vector<Box>> boxes;
    for (const TensorLink& link : tensor_links(tiny_model(family))) {
      EXPECT_EQ(link.box.numel(), link.hf_shape.numel()) << link.hf_name;
      boxes[link.name].push_back(link.box);
    }
    for (const auto& [name, parts] : boxes)
      EXPECT_EQ(tiling_defect(parts.front().global, parts), "") << name;
  }
}

}  // namespace
}  // namespace ferry
