#pragma once

// What Megatron-LM's own estimator (its report of theoretical memory) says of a configuration, for
// comparison. It counts weights with optimizer state of the most loaded rank, and the activations
// of the first stage as if every layer were a dense one of width ffn: experts, offload, full
// recomputation and buffers do not enter.

#include <cstdint>
#include <vector>

#include "app/run_config.h"

namespace ferry {

/// The model and its layout in that estimator's terms. 0: not there.
struct MegatronModel {
  int64_t hidden = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t ffn = 0;  // of dense layers
  int64_t moe_ffn = 0, shared_ffn = 0, experts = 0, top_k = 0;
  int64_t latent = 0;  // width in which experts work, if not `hidden`
  bool shared_gate = false;
  bool gated = true;       // SwiGLU: three matrices in an MLP
  int64_t norm_parts = 1;  // weights of a norm: RMSNorm 1, LayerNorm 2
  int64_t vocab = 0;       // padded
  bool untied = false;
  std::vector<bool> is_moe;  // of each layer
  int64_t extra_layers = 0;  // of multi-token prediction, of the kind of the last layer
  bool mla = false;
  int64_t q_rank = 0, kv_rank = 0, qk_nope = 0, qk_rope = 0, v_dim = 0;
};

struct MegatronLayout {
  int64_t world = 1, tensor = 1, pipeline = 1, expert = 1, expert_tensor = 1;
  int64_t virtual_stages = 1;
  int64_t seq = 0, micro_batch = 1, num_micro = 1;
  bool sequence = false;
  bool selective_recompute = false;
  bool distributed_optimizer = true;
};

struct MegatronEstimate {
  double parameters = 0, active_parameters = 0;  // of the whole model
  double weights_and_optimizer = 0;              // bytes of the most loaded rank, with gradients
  double activations = 0;                        // bytes of a rank of the first stage
  double total() const { return weights_and_optimizer + activations; }
};

MegatronEstimate megatron_estimate(const MegatronModel& model, const MegatronLayout& layout);
/// Of a configuration on `ranks` ranks.
MegatronEstimate megatron_estimate(const RunConfig& config, int64_t ranks);

/// Activations of one dense transformer layer (MLP of width 4 * hidden) on one of `tensor` ranks
/// with sequence parallelism, in bf16: Korthikanti et al., "Reducing Activation Recomputation in
/// Large Transformer Models" (2022), table 2, with s tokens, b sequences, width h and a heads:
///   nothing recomputed   s b h / t (34 + 5 a s / h)
///   selective            s b h / t * 34              the scores of attention are recomputed
///   full                 s b h / t * 2               its input is left
enum class LayerRecompute { None, Selective, Full };
double dense_layer_bytes(double s, double b, double h, double a, double tensor,
                         LayerRecompute recompute);

}  // namespace ferry
