// Legal features that this version does not have. A feature that arrives deletes its row.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "app/graph_plan.h"
#include "app/recompute_plan.h"
#include "app/validate.h"

namespace ferry {

namespace {

constexpr char kVersion[] = "0.1";

Exclusion missing(std::vector<std::string> keys, bool (*applies)(const RunConfig&),
                  const char* feature, const char* instead) {
  return {std::move(keys), applies,
          fmt::format("{} is not in this version of Ferry ({})", feature, kVersion),
          "the configuration is legal, and this version cannot run it",
          fmt::format("use {}", instead)};
}

bool balances(const RunConfig& c, std::string_view loss) {
  const std::vector<std::string>& names = c.moe.router.balance;
  return std::find(names.begin(), names.end(), loss) != names.end();
}

bool graphs_iteration(const RunConfig& c) { return graphs_micro_batches(c.cuda_graph); }

bool graphs_part(const RunConfig& c, Label part) {
  return graphed_parts(c.cuda_graph).contains(part);
}

bool graphs_any(const RunConfig& c) { return c.cuda_graph.impl != "none"; }

bool recomputes_norms(const RunConfig& c) {
  return discarded_labels(c.recompute).contains(Label::Layernorm);
}

// What graphs cannot be recorded with.
std::vector<Exclusion> graph_features() {
  const char kImpl[] = "cuda_graph.impl";
  const char kModules[] = "cuda_graph.modules";
  return {
      missing(
          {kModules, "parallel.expert"},
          [](const RunConfig& c) {
            return (graphs_part(c, Label::Layer) || graphs_part(c, Label::Moe)) &&
                   (c.parallel.expert > 1 || c.parallel.expert_tensor > 1);
          },
          "a graph of MoE layers with expert parallelism, whose counts of rows the host needs,",
          "cuda_graph.modules = [attn, moe_router], or parallel.expert = 1 and "
          "parallel.expert_tensor = 1"),
      missing(
          {kModules, "parallel.pipeline"},
          [](const RunConfig& c) {
            return graphs_part(c, Label::Layer) && c.parallel.pipeline > 1;
          },
          "a graph of whole layers in a pipeline, whose messages are what they write,",
          "cuda_graph.modules = [attn, mlp, moe]"),
      missing(
          {kModules, "recompute.modules"},
          [](const RunConfig& c) {
            return c.cuda_graph.impl == "local" && !graphs_part(c, Label::Layer) &&
                   recomputes_norms(c);
          },
          "recompute of layernorm beside graphs of modules, which keep the norms' outputs as their "
          "inputs,",
          "cuda_graph.modules = [] for graphs of whole layers, or remove layernorm from "
          "recompute.modules"),
      missing(
          {kImpl, "parallel.pipeline"},
          [](const RunConfig& c) { return graphs_iteration(c) && c.parallel.pipeline > 1; },
          "a graph of the iteration in a pipeline",
          "cuda_graph.impl = none, or parallel.pipeline = 1"),
      missing(
          {kImpl, "parallel.tensor"},
          [](const RunConfig& c) { return graphs_any(c) && c.parallel.tensor > 1; },
          "a CUDA graph with tensor parallelism", "cuda_graph.impl = none, or parallel.tensor = 1"),
      missing(
          {kImpl, "parallel.expert", "parallel.expert_tensor"},
          [](const RunConfig& c) {
            return graphs_iteration(c) && (c.parallel.expert > 1 || c.parallel.expert_tensor > 1);
          },
          "a graph of the iteration with expert parallelism, whose counts of rows the host needs,",
          "cuda_graph.impl = none, or parallel.expert = 1 and parallel.expert_tensor = 1"),
      missing(
          {kImpl, "model.hidden_dropout", "model.attention_dropout"},
          [](const RunConfig& c) {
            return graphs_any(c) && (c.model.hidden_dropout > 0 || c.model.attention_dropout > 0);
          },
          "a CUDA graph with dropout, whose random numbers change from step to step,",
          "cuda_graph.impl = none, or model.hidden_dropout = 0 and model.attention_dropout = 0"),
      missing(
          {kImpl, "layer_offload.layers"},
          [](const RunConfig& c) { return graphs_iteration(c) && c.layer_offload.layers > 0; },
          "a graph of the iteration with layer offload",
          "cuda_graph.impl = none, or layer_offload.layers = 0"),
      missing(
          {kImpl, "paged_stash.enabled"},
          [](const RunConfig& c) { return graphs_any(c) && c.paged_stash.enabled; },
          "a CUDA graph with the paged stash, whose steps may run again,",
          "cuda_graph.impl = none, or paged_stash.enabled = false"),
      missing(
          {kImpl, "moe.rank_capacity_factor"},
          [](const RunConfig& c) {
            return graphs_any(c) && c.moe.rank_capacity_factor.has_value();
          },
          "a CUDA graph with a bound on rows, whose steps may run again,",
          "cuda_graph.impl = none, or remove moe.rank_capacity_factor"),
  };
}

}  // namespace

const std::vector<Exclusion>& unsupported_features() {
  static const std::vector<Exclusion> features = {
      missing(
          {"parallel.context"}, [](const RunConfig& c) { return c.parallel.context > 1; },
          "context parallelism", "parallel.context = 1"),
      missing(
          {"model.attention"}, [](const RunConfig& c) { return c.model.attention == "mla"; },
          "latent attention (MLA)", "model.attention = gqa"),
      missing(
          {"moe.capacity_factor"},
          [](const RunConfig& c) { return c.moe.capacity_factor.has_value(); },
          "a capacity of experts", "dropless routing: remove moe.capacity_factor"),
      missing(
          {"moe.shared_overlap"}, [](const RunConfig& c) { return c.moe.shared_overlap; },
          "shared-expert overlap", "moe.shared_overlap = false"),
      missing(
          {"moe.router.score"}, [](const RunConfig& c) { return c.moe.router.score == "sigmoid"; },
          "sigmoid routing", "moe.router.score = softmax"),
      missing(
          {"moe.router.balance"}, [](const RunConfig& c) { return balances(c, "seq_aux_loss"); },
          "seq_aux_loss", "moe.router.balance = aux_loss"),
      missing(
          {"moe.router.balance"}, [](const RunConfig& c) { return balances(c, "global_aux_loss"); },
          "global_aux_loss", "moe.router.balance = aux_loss"),
      missing(
          {"moe.router.bias_rate"}, [](const RunConfig& c) { return c.moe.router.bias_rate > 0; },
          "loss-free balancing", "moe.router.bias_rate = 0 and moe.router.balance = aux_loss"),
      missing(
          {"moe.router.groups"}, [](const RunConfig& c) { return c.moe.router.groups > 0; },
          "group-limited routing", "moe.router.groups = 0 and moe.router.group_topk = 0"),
      missing(
          {"moe.router.scaling_factor"},
          [](const RunConfig& c) { return c.moe.router.scaling_factor != 1.0; },
          "a scaling factor of router probabilities", "moe.router.scaling_factor = 1.0"),
      missing(
          {"moe.router.dtype"},
          [](const RunConfig& c) {
            return c.moe.router.dtype == "fp64" && c.model.precision != "fp64";
          },
          "an fp64 router", "moe.router.dtype = fp32, or model.precision = fp64 on the CPU"),
      missing(
          {"moe.router.jitter"}, [](const RunConfig& c) { return c.moe.router.jitter > 0; },
          "router jitter", "moe.router.jitter = 0"),
      missing(
          {"batch.ramp"}, [](const RunConfig& c) { return !c.batch.ramp.empty(); },
          "a batch size ramp", "batch.ramp = []"),
      missing(
          {"data.document_mask"}, [](const RunConfig& c) { return c.data.document_mask; },
          "the document mask", "data.document_mask = false"),
      missing(
          {"debug.delay_copies_us"}, [](const RunConfig& c) { return c.debug.delay_copies_us > 0; },
          "a delay of copies", "debug.delay_copies_us = 0"),
      missing(
          {"debug.delay_compute_us"},
          [](const RunConfig& c) { return c.debug.delay_compute_us > 0; }, "a delay of operations",
          "debug.delay_compute_us = 0"),
      missing(
          {"debug.dump_routing"}, [](const RunConfig& c) { return c.debug.dump_routing; },
          "the dump of routing", "debug.dump_routing = false"),
      missing(
          {"debug.dump_token_loss"}, [](const RunConfig& c) { return c.debug.dump_token_loss; },
          "the dump of token losses", "debug.dump_token_loss = false"),
  };
  static const std::vector<Exclusion> table = [] {
    std::vector<Exclusion> rows = features;
    const std::vector<Exclusion> more = graph_features();
    rows.insert(rows.end(), more.begin(), more.end());
    return rows;
  }();
  return table;
}

}  // namespace ferry
