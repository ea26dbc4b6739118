#pragma once

// What the config.json of a Hugging Face model can say of a model, whichever of the supported
// families it belongs to.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ferry {

enum class HfFamily { Mixtral, Qwen3Moe, Olmoe };

std::string_view model_type(HfFamily family);    // "mixtral"
std::string_view architecture(HfFamily family);  // "MixtralForCausalLM"

struct ModelDescription {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab = 0;
  int64_t seq = 0;        // positions
  int64_t dense_ffn = 0;  // inner width of a dense MLP
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t expert_ffn = 0;  // inner width of an expert
  std::vector<bool> is_moe_layer;
  std::string qk_norm = "none";  // head: a weight of head_dim; full: one of all heads
  bool renormalise = true;       // probabilities of the chosen experts sum to 1
  bool tie_embeddings = false;
  double norm_eps = 1e-5;
  double rope_theta = 1e4;
  double init_std = 0.02;
  double attention_dropout = 0;
  double aux_coeff = 0;
  double jitter = 0;

  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  bool operator==(const ModelDescription&) const = default;
};

/// The family that expresses the model; the norm of queries and keys decides. Throws
/// Error(ExitCode::Usage) with every reason why that family cannot.
HfFamily family_of(const ModelDescription& model);

}  // namespace ferry
