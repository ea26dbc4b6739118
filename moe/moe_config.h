#pragma once

// The tables [moe] and [moe.router] of a configuration. The members have the names of the keys.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/fields.h"

namespace ferry {

/// [moe.router]: how a token picks its experts, and what keeps the experts evenly loaded.
struct RouterConfig {
  std::string score = "softmax";
  bool pre_softmax = false;
  std::vector<std::string> balance = {"aux_loss"};
  std::vector<double> aux_coeff = {0.0};
  double z_coeff = 0.0;
  double bias_rate = 0.0;
  int64_t groups = 0;
  int64_t group_topk = 0;
  double scaling_factor = 1.0;
  std::string dtype = "fp32";
  double jitter = 0.0;

  /// The coefficient of a balancing loss, 0 if `balance` does not name it.
  double coefficient(std::string_view loss) const {
    for (size_t i = 0; i < balance.size() && i < aux_coeff.size(); ++i) {
      if (balance[i] == loss) return aux_coeff[i];
    }
    return 0.0;
  }

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(Field{.key = "score",
                .doc = "turns router logits into probabilities",
                .allowed = {"softmax", "sigmoid"}},
          &RouterConfig::score);
    visit(Field{.key = "pre_softmax",
                .doc = "softmax over all experts before the top-k, not renormalised; otherwise "
                       "softmax over the chosen logits"},
          &RouterConfig::pre_softmax);
    visit(Field{.key = "balance",
                .doc = "balancing losses, one name or a list",
                .allowed = {"aux_loss", "seq_aux_loss", "global_aux_loss", "none"}},
          &RouterConfig::balance);
    visit(Field{.key = "aux_coeff",
                .doc = "coefficient of each balancing loss; as many as `balance` has",
                .range = at_least(0)},
          &RouterConfig::aux_coeff);
    visit(Field{.key = "z_coeff",
                .doc = "coefficient of the router z-loss, mean(logsumexp(logits)^2)",
                .range = at_least(0),
                .zero = "off"},
          &RouterConfig::z_coeff);
    visit(Field{.key = "bias_rate",
                .doc = "step of the loss-free balancing bias",
                .range = at_least(0),
                .zero = "off"},
          &RouterConfig::bias_rate);
    visit(Field{.key = "groups",
                .doc = "groups of experts for group-limited routing",
                .range = at_least(0),
                .zero = "off"},
          &RouterConfig::groups);
    visit(Field{.key = "group_topk",
                .doc = "groups a token may use",
                .range = at_least(0),
                .zero = "off"},
          &RouterConfig::group_topk);
    visit(Field{.key = "scaling_factor",
                .doc = "factor on the probabilities of the chosen experts",
                .range = above(0)},
          &RouterConfig::scaling_factor);
    visit(Field{.key = "dtype",
                .doc = "precision of router logits and probabilities",
                .allowed = {"fp32", "fp64"}},
          &RouterConfig::dtype);
    visit(Field{.key = "jitter",
                .doc = "router input is multiplied by uniform noise in [1 - jitter, 1 + jitter]",
                .range = half_open(0, 1),
                .zero = "off"},
          &RouterConfig::jitter);
  }
};

/// [moe]: the experts of a Mixture-of-Experts model.
struct MoeConfig {
  int64_t experts = 0;
  int64_t top_k = 2;
  int64_t ffn = 0;
  std::vector<int64_t> layer_freq = {1};
  int64_t shared_ffn = 0;
  bool shared_gate = false;
  bool shared_overlap = false;
  std::string dispatcher = "alltoall";
  std::optional<double> capacity_factor;
  std::string drop_policy = "probs";
  bool pad_to_capacity = false;
  std::optional<double> rank_capacity_factor;
  bool fused_experts = false;
  bool gather = false;
  RouterConfig router;

  /// Whether layer `layer` (from 0) has experts instead of a dense MLP. One number n in
  /// `layer_freq` means every n-th layer beginning with layer 0; a list says it for each layer.
  bool is_moe_layer(int64_t layer) const {
    if (experts == 0 || layer_freq.empty()) return false;
    if (layer_freq.size() == 1) return layer_freq[0] > 0 && layer % layer_freq[0] == 0;
    return layer < static_cast<int64_t>(layer_freq.size()) &&
           layer_freq[static_cast<size_t>(layer)] != 0;
  }

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(Field{.key = "experts",
                .doc = "experts of a MoE layer",
                .range = closed(0, 1e6),
                .zero = "a dense model"},
          &MoeConfig::experts);
    visit(Field{.key = "top_k", .doc = "experts that each token uses", .range = closed(1, 1e6)},
          &MoeConfig::top_k);
    visit(Field{.key = "ffn",
                .doc = "inner width of one expert",
                .range = closed(0, 1e7),
                .zero = "model.ffn"},
          &MoeConfig::ffn);
    visit(Field{.key = "layer_freq",
                .doc = "n: layers 0, n, 2n, ... are MoE layers; a list of 0 and 1 says it for each "
                       "layer",
                .range = at_least(0)},
          &MoeConfig::layer_freq);
    visit(Field{.key = "shared_ffn",
                .doc = "inner width of the shared expert, which every token uses",
                .range = closed(0, 1e7),
                .zero = "no shared expert"},
          &MoeConfig::shared_ffn);
    visit(Field{.key = "shared_gate", .doc = "a sigmoid gate on the output of the shared expert"},
          &MoeConfig::shared_gate);
    visit(Field{.key = "shared_overlap", .doc = "run the shared expert beside the all-to-all"},
          &MoeConfig::shared_overlap);
    visit(Field{.key = "dispatcher",
                .doc = "how tokens reach experts on other ranks",
                .allowed = {"alltoall", "allgather"}},
          &MoeConfig::dispatcher);
    visit(Field{.key = "capacity_factor",
                .doc = "an expert takes at most ceil(tokens * top_k / experts * factor) tokens; "
                       "unset: all",
                .range = above(0)},
          &MoeConfig::capacity_factor);
    visit(Field{.key = "drop_policy",
                .doc = "which tokens a full expert keeps: the most probable or the first",
                .allowed = {"probs", "position"}},
          &MoeConfig::drop_policy);
    visit(Field{.key = "pad_to_capacity", .doc = "every expert gets exactly its capacity of rows"},
          &MoeConfig::pad_to_capacity);
    visit(Field{.key = "rank_capacity_factor",
                .doc = "rows for which a rank reserves memory, over the balanced number; unset: as "
                       "many as come",
                .range = above(0)},
          &MoeConfig::rank_capacity_factor);
    visit(Field{.key = "fused_experts", .doc = "fc1, activation and fc2 as one fused operation"},
          &MoeConfig::fused_experts);
    visit(Field{.key = "gather",
                .doc = "experts on one rank read tokens where they are, not copies in their order"},
          &MoeConfig::gather);
    visit(Table{.key = "router", .doc = "How a token picks its experts."}, &MoeConfig::router);
  }
};

}  // namespace ferry
