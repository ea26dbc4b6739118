#pragma once

// What a model costs, from its sizes alone: parameters, floating-point operations, bytes.
//
// Conventions. A multiplication and its addition are two operations; backward costs twice forward,
// so a matrix parameter costs 6 per token that uses it; causal attention counts the half that is
// not masked; recomputed work, norms and softmax do not count. The embedding is a lookup and costs
// nothing; the output layer costs even where it shares the weight of the embedding.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "app/model/model_config.h"

namespace ferry {

/// Parameters by category. `norms` includes the norms of queries and keys, `shared` the gate.
struct ParameterCount {
  int64_t embedding = 0;
  int64_t attention = 0;
  int64_t dense_mlp = 0;
  int64_t experts = 0;
  int64_t shared_experts = 0;
  int64_t router = 0;
  int64_t norms = 0;
  int64_t head = 0;            // 0 if the embeddings are tied
  int64_t active_experts = 0;  // the part of `experts` that one token uses

  int64_t total() const;
  /// Parameters that one token uses.
  int64_t active() const;
};

/// Operations of forward and backward for one token of a sequence of model.seq tokens.
struct FlopCount {
  double matmul = 0;
  double attention = 0;
  double total() const { return matmul + attention; }
};

/// One tensor that forward saves for backward, under the label of the module that saves it.
struct ActivationCost {
  std::string_view module;
  std::string_view name;
  int64_t bytes_per_token = 0;
};

/// How many ranks share a module (see layers/tensor_parallel.h and moe/expert_parallel.h).
struct ModuleShares {
  int64_t tensor = 1;
  bool sequence = false;
  int64_t expert_tensor = 1;
};

/// Bytes on one rank.
struct MemoryEstimate {
  int64_t weights = 0;
  int64_t gradients = 0;    // fp32 (fp64 for fp64)
  int64_t optimizer = 0;    // both moments, and fp32 masters where the weights are bf16
  int64_t activations = 0;  // of the micro-batches under way
  int64_t logits = 0;       // one chunk of the loss
  int64_t workspace = 0;    // gradients of activations of the widest layer, and library workspace
  int64_t total() const;
};

/// Layers with experts.
int64_t num_moe_layers(const GptConfig& config);

ParameterCount count_parameters(const GptConfig& config);

FlopCount flops_per_token(const GptConfig& config);

/// What one layer saves on a rank, per token of the micro-batch. Expert rows are counted as top_k
/// per token, which is exact on average over ranks: balanced routing.
std::vector<ActivationCost> activation_costs(const GptConfig& config, bool is_moe_layer,
                                             const ModuleShares& shares = {});

/// What layers [first_layer, first_layer + num_layers), and the head, save of `tokens` tokens.
int64_t saved_bytes(const GptConfig& config, int64_t first_layer, int64_t num_layers, bool head,
                    int64_t tokens, const ModuleShares& shares = {});
/// One chunk of logits of `tokens` tokens.
int64_t logit_bytes(const GptConfig& config, int64_t tokens, const ModuleShares& shares = {});
/// What backward holds beside saved activations, and the libraries.
int64_t workspace_bytes(const GptConfig& config, int64_t tokens, const ModuleShares& shares = {});

}  // namespace ferry
