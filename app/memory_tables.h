#pragma once

// The tables of a configuration that trade time for memory: [activation_offload], [recompute],
// [layer_offload], [paged_stash], [cuda_graph]. The members have the names of the keys.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/fields.h"

namespace ferry {

/// [activation_offload]: activations wait for backward in host memory.
struct ActivationOffloadTable {
  bool enabled = false;
  std::vector<std::string> modules;
  int64_t min_tensor_elements = 1048576;
  double fraction = 1.0;
  int64_t delta_bytes_across_pipeline = 0;
  std::optional<int64_t> max_inflight;
  bool delay_until_graph = false;
  double auto_budget = 0.0;

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(Field{.key = "enabled", .doc = "switch"}, &ActivationOffloadTable::enabled);
    visit(Field{.key = "modules",
                .doc = "whose saved inputs to offload",
                .allowed = {"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm",
                            "expert_fc1", "moe_act", "fused_group_mlp"}},
          &ActivationOffloadTable::modules);
    visit(Field{.key = "min_tensor_elements", .doc = "smaller tensors stay", .range = at_least(0)},
          &ActivationOffloadTable::min_tensor_elements);
    visit(Field{.key = "fraction",
                .doc = "part of the groups that is offloaded",
                .range = closed(0, 1)},
          &ActivationOffloadTable::fraction);
    visit(Field{.key = "delta_bytes_across_pipeline",
                .doc = "bytes fewer per pipeline stage",
                .range = at_least(0)},
          &ActivationOffloadTable::delta_bytes_across_pipeline);
    visit(Field{.key = "max_inflight",
                .doc = "groups of a module on their way to the host at a time; unset: no limit",
                .range = at_least(0)},
          &ActivationOffloadTable::max_inflight);
    visit(Field{.key = "delay_until_graph",
                .doc = "copies of experts begin after the next graph of a module"},
          &ActivationOffloadTable::delay_until_graph);
    visit(Field{.key = "auto_budget",
                .doc = "choose what to offload so that a step takes this part longer at most",
                .range = closed(0, 1),
                .zero = "off"},
          &ActivationOffloadTable::auto_budget);
  }
};

/// [recompute]: activations are computed again in backward.
struct RecomputeTable {
  std::string granularity = "none";
  std::string method = "none";
  int64_t num_layers = 0;
  std::vector<std::string> modules = {"core_attn"};
  bool distribute_saved_activations = false;

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(Field{.key = "granularity",
                .doc = "whole layers or named modules",
                .allowed = {"none", "full", "selective"}},
          &RecomputeTable::granularity);
    visit(Field{.key = "method",
                .doc = "full: chunks over all layers, or the first layers of a stage",
                .allowed = {"none", "uniform", "block"}},
          &RecomputeTable::method);
    visit(Field{.key = "num_layers",
                .doc = "full: layers of a chunk (uniform) or of a stage (block)",
                .range = at_least(0)},
          &RecomputeTable::num_layers);
    visit(Field{.key = "modules",
                .doc = "selective: what to compute again",
                .allowed = {"core_attn", "moe_act", "moe_permute", "layernorm", "mla_up_proj",
                            "mlp", "moe", "shared_experts"}},
          &RecomputeTable::modules);
    visit(Field{.key = "distribute_saved_activations",
                .doc = "share saved inputs over tensor-parallel ranks"},
          &RecomputeTable::distribute_saved_activations);
  }
};

/// [layer_offload]: whole layers wait in host memory.
struct LayerOffloadTable {
  int64_t layers = 0;
  bool activations = true;
  bool weights = false;
  bool double_buffering = false;
  bool retain_pinned_buffers = false;

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(
        Field{
            .key = "layers", .doc = "first layers to offload", .range = at_least(0), .zero = "off"},
        &LayerOffloadTable::layers);
    visit(Field{.key = "activations", .doc = "offload their activations"},
          &LayerOffloadTable::activations);
    visit(Field{.key = "weights", .doc = "offload their weights"}, &LayerOffloadTable::weights);
    visit(Field{.key = "double_buffering", .doc = "two device buffers for reloading"},
          &LayerOffloadTable::double_buffering);
    visit(Field{.key = "retain_pinned_buffers", .doc = "keep page-locked buffers between steps"},
          &LayerOffloadTable::retain_pinned_buffers);
  }
};

/// [paged_stash]: activations of experts in pages of a fixed pool.
struct PagedStashTable {
  bool enabled = false;
  int64_t page_tokens = 64;
  double device_factor = 1.1;
  double host_factor = 0.0;

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(Field{.key = "enabled", .doc = "switch"}, &PagedStashTable::enabled);
    visit(Field{.key = "page_tokens", .doc = "rows of a page", .range = at_least(1)},
          &PagedStashTable::page_tokens);
    visit(Field{.key = "device_factor",
                .doc = "pages on the device, over what balanced routing needs at once; negative: "
                       "over what the first step needed"},
          &PagedStashTable::device_factor);
    visit(Field{.key = "host_factor",
                .doc = "the same of pages in host memory, for what the device has no pages for",
                .zero = "none"},
          &PagedStashTable::host_factor);
  }
};

/// [cuda_graph]: replay recorded work.
struct CudaGraphTable {
  std::string impl = "none";
  std::vector<std::string> modules;
  int64_t warmup_steps = 3;

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(Field{.key = "impl",
                .doc = "graphs of modules or of the whole iteration",
                .allowed = {"none", "local", "full_iteration"}},
          &CudaGraphTable::impl);
    visit(Field{.key = "modules",
                .doc = "of local; empty: whole layers",
                .allowed = {"attn", "mlp", "moe", "moe_router", "moe_preprocess"}},
          &CudaGraphTable::modules);
    visit(Field{.key = "warmup_steps", .doc = "steps before recording", .range = at_least(0)},
          &CudaGraphTable::warmup_steps);
  }
};

}  // namespace ferry
