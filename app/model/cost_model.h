#pragma once

// What a model costs, from its sizes alone: parameters, floating-point operations, bytes.
//
// Conventions. A multiplication and its addition are two operations; backward costs twice forward,
// so a matrix parameter costs 6 per token that uses it; causal attention counts the half that is
// not masked; recomputed work, norms and softmax do not count. The embedding is a lookup and costs
// nothing; the output layer costs even where it shares the weight of the embedding.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "app/model/saved_records.h"

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

/// Forward operations of one layer for one token, by what recomputation can repeat alone.
struct LayerFlops {
  double projections = 0;  // of attention
  double core_attention = 0;
  double feed_forward = 0;    // dense MLP; or router, experts and shared experts
  double shared_experts = 0;  // a part of feed_forward
  double total() const { return projections + core_attention + feed_forward; }
};

/// What forward saves for backward under the label that it belongs to.
struct ActivationCost {
  std::string_view module;
  std::string name;  // of its tensors
  int64_t bytes_per_token = 0;
};

/// Where the bytes of a rank's optimizer are, and what a step moves of them.
struct OptimizerBytes {
  int64_t device_masters = 0;  // fp32, where the weights are bf16
  int64_t device_moments = 0;  // of the types that the configuration says
  int64_t host_masters = 0;    // fp32 (fp64 for fp64), as are the moments
  int64_t host_moments = 0;
  int64_t gradient_staging = 0;  // host memory of gradients on their way
  int64_t value_staging = 0;     // host memory of weights on their way back
  int64_t d2h = 0;               // gradients, of a step
  int64_t h2d = 0;               // weights, of a step

  int64_t device() const { return device_masters + device_moments; }
  int64_t host_state() const { return host_masters + host_moments; }
};

/// Bytes of one rank, on its device.
struct MemoryEstimate {
  int64_t weights = 0;
  int64_t gradients = 0;    // fp32 (fp64 for fp64)
  int64_t optimizer = 0;    // optimizer_bytes.device()
  int64_t activations = 0;  // of the micro-batches under way
  int64_t copies = 0;       // activations on their way to or from the host or the stash
  int64_t stash = 0;        // pages of the paged stash
  int64_t logits = 0;       // one chunk of the loss
  int64_t workspace = 0;    // gradients of activations of the widest layer, and library workspace
  int64_t host = 0;         // page-locked, on the host: not in the total
  int64_t pageable = 0;     // on the host: not in the total
  // On the host for saves beside training, in neither: page-locked for state that is copied from
  // the device, and pageable for state that is there and changes before it is written.
  int64_t save_staging = 0;
  int64_t save_copies = 0;
  OptimizerBytes optimizer_bytes;
  int64_t total() const;
  int64_t on_host() const { return host + pageable + save_staging + save_copies; }
};

/// Layers with experts.
int64_t num_moe_layers(const GptConfig& config);

ParameterCount count_parameters(const GptConfig& config);

FlopCount flops_per_token(const GptConfig& config);

/// Of one layer, of one kind or the other.
LayerFlops forward_flops(const GptConfig& config, bool is_moe_layer);
/// Seconds of the passes of `tokens` tokens through a part, at `flop_per_s`; backward takes twice
/// the operations of forward, and those that are recomputed.
struct PassTimes {
  double forward_s = 0;
  double backward_s = 0;
};
PassTimes pass_times(const GptConfig& config, const ModelPart& part, int64_t tokens,
                     const ModuleShares& shares, const GptRecompute& recompute, double flop_per_s);

/// What one layer of one kind or the other keeps on the device of a rank, per token of the
/// micro-batch and label; see saved_records.h. Empty if no layer is of that kind.
std::vector<ActivationCost> activation_costs(const GptConfig& config, bool is_moe_layer,
                                             const ModuleShares& shares = {},
                                             const SavedPolicies& policies = {});
/// Bytes that the records of a pass keep on the device at the end of forward, by label.
std::map<Label, ActivationCost> kept_costs(const PassRecords& costs);

/// One chunk of logits of `tokens` tokens.
int64_t logit_bytes(const GptConfig& config, int64_t tokens, const ModuleShares& shares = {});
/// What backward holds beside saved activations, and the libraries.
int64_t workspace_bytes(const GptConfig& config, int64_t tokens, const ModuleShares& shares = {});

}  // namespace ferry
