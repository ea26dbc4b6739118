// Combinations that are refused whatever the numbers are, as one table with the reasons.

#include <algorithm>
#include <string_view>

#include "app/graph_plan.h"
#include "app/validate.h"

namespace ferry {

namespace {

bool has(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool offloads(const RunConfig& c, std::string_view module) {
  return c.activation_offload.enabled && has(c.activation_offload.modules, module);
}

// The parts of the experts, which the paged stash and the recompute of whole MoE layers also own.
bool offloads_expert_parts(const RunConfig& c) {
  return offloads(c, "expert_fc1") || offloads(c, "moe_act") || offloads(c, "fused_group_mlp");
}

bool names_expert_parts(const RunConfig& c) {
  const std::vector<std::string>& modules = c.activation_offload.modules;
  return has(modules, "expert_fc1") || has(modules, "moe_act") || has(modules, "fused_group_mlp");
}

bool offloads_beside_experts(const RunConfig& c) {
  return std::any_of(c.activation_offload.modules.begin(), c.activation_offload.modules.end(),
                     [](const std::string& name) {
                       return name != "expert_fc1" && name != "moe_act" &&
                              name != "fused_group_mlp";
                     });
}

bool recomputes(const RunConfig& c, std::string_view module) {
  return c.recompute.granularity == "selective" && has(c.recompute.modules, module);
}

bool has_layer_offload(const RunConfig& c) { return c.layer_offload.layers > 0; }

const char kOffload[] = "activation_offload.enabled";
const char kOffloadModules[] = "activation_offload.modules";
const char kGranularity[] = "recompute.granularity";
const char kRecomputeModules[] = "recompute.modules";
const char kLayerOffload[] = "layer_offload.layers";
const char kStash[] = "paged_stash.enabled";
const char kGraph[] = "cuda_graph.impl";
const char kGraphModules[] = "cuda_graph.modules";

std::vector<Exclusion> offload_exclusions() {
  return {
      {{kOffload, kLayerOffload},
       [](const RunConfig& c) { return c.activation_offload.enabled && has_layer_offload(c); },
       "activation offload with layer offload",
       "both would take hold of the same saved tensors",
       "one of them"},
      {{kOffloadModules, kOffload},
       [](const RunConfig& c) {
         return c.activation_offload.enabled && c.activation_offload.modules.empty() &&
                c.activation_offload.auto_budget == 0;
       },
       "activation offload of nothing",
       "activation_offload.modules is empty",
       "name modules, or activation_offload.enabled = false"},
      {{kOffloadModules},
       [](const RunConfig& c) { return offloads(c, "attn_proj") && !offloads(c, "core_attn"); },
       "offload of attn_proj without core_attn",
       "the input of the projection is the output of attention, which the backward of attention "
       "keeps",
       "add core_attn"},
      {{kOffloadModules, kRecomputeModules},
       [](const RunConfig& c) { return recomputes(c, "moe") && offloads_expert_parts(c); },
       "offload inside a recomputed MoE layer",
       "nothing inside the layer is saved, so there is nothing to offload",
       "remove moe from recompute.modules, or the parts of the experts from "
       "activation_offload.modules"},
      {{kOffloadModules, kRecomputeModules},
       [](const RunConfig& c) { return recomputes(c, "moe_permute") && offloads(c, "expert_fc1"); },
       "offload of rows of experts that are made again",
       "what is recomputed with moe_permute is not saved, so there is nothing to offload",
       "remove expert_fc1, or moe_permute from recompute.modules"},
      {{kOffloadModules, "moe.fused_experts"},
       [](const RunConfig& c) { return offloads(c, "fused_group_mlp") && !c.moe.fused_experts; },
       "offload of fused_group_mlp without fused experts",
       "there is no fused operation whose inputs could be offloaded",
       "moe.fused_experts = true, or expert_fc1 and moe_act"},
      {{kOffloadModules},
       [](const RunConfig& c) {
         return offloads(c, "fused_group_mlp") &&
                (offloads(c, "expert_fc1") || offloads(c, "moe_act"));
       },
       "offload of fused_group_mlp together with its parts",
       "the same tensors would be offloaded twice",
       "fused_group_mlp alone, or expert_fc1 and moe_act"},
      {{kOffloadModules, "moe.fused_experts"},
       [](const RunConfig& c) {
         return c.moe.fused_experts && (offloads(c, "expert_fc1") || offloads(c, "moe_act"));
       },
       "offload of parts of fused experts",
       "a fused operation saves its inputs as a whole",
       "fused_group_mlp, or moe.fused_experts = false"},
      {{kOffload, kGranularity},
       [](const RunConfig& c) {
         return c.activation_offload.enabled && c.recompute.granularity == "full";
       },
       "activation offload with full recompute",
       "a recomputed layer saves only its input, so its modules have nothing to offload",
       "recompute.granularity = selective or none"},
      {{kGraph, kOffloadModules},
       [](const RunConfig& c) {
         return c.cuda_graph.impl == "local" && c.activation_offload.enabled &&
                offloads_beside_experts(c);
       },
       "graphs of modules with offload beside the experts",
       "copies of a captured module would be replayed at fixed places of a schedule that changes",
       "only expert_fc1, moe_act or fused_group_mlp"},
      {{kGraphModules, kOffload},
       [](const RunConfig& c) {
         return c.cuda_graph.impl == "local" && c.activation_offload.enabled &&
                c.cuda_graph.modules.empty();
       },
       "graphs of whole layers with activation offload",
       "an empty cuda_graph.modules captures the experts whose tensors are offloaded",
       "name the captured modules, without moe"},
      {{kGraphModules, kOffload},
       [](const RunConfig& c) {
         return c.cuda_graph.impl != "none" && c.activation_offload.enabled &&
                has(c.cuda_graph.modules, "moe");
       },
       "a captured MoE layer with activation offload",
       "the sizes of what is offloaded change from step to step",
       "remove moe from cuda_graph.modules"},
      {{"cuda_graph.warmup_steps", kOffload},
       [](const RunConfig& c) {
         return c.cuda_graph.impl != "none" && c.activation_offload.enabled &&
                c.cuda_graph.warmup_steps == 0;
       },
       "graphs without a warm-up with activation offload",
       "what to offload is planned from the sizes seen in a step that is not captured",
       "cuda_graph.warmup_steps = 1 or more"},
      {{"activation_offload.max_inflight", kGraph},
       [](const RunConfig& c) {
         return graphs_micro_batches(c.cuda_graph) && c.activation_offload.enabled &&
                !c.activation_offload.max_inflight;
       },
       "a graph of the iteration with unlimited copies under way",
       "a captured iteration cannot wait for memory, so the copies under way need a limit",
       "set activation_offload.max_inflight"},
      {{"activation_offload.delay_until_graph", kGraph},
       [](const RunConfig& c) {
         return c.activation_offload.delay_until_graph &&
                (c.cuda_graph.impl != "local" || !c.activation_offload.enabled);
       },
       "a delay of offload until graphs are launched, without them or without offload",
       "copies of the experts would wait for the launch of a module's graph",
       "cuda_graph.impl = local and activation_offload.enabled = true, or delay_until_graph = "
       "false"},
      {{kOffloadModules, kStash},
       // Also where offload is off: the list says what is meant.
       [](const RunConfig& c) { return c.paged_stash.enabled && names_expert_parts(c); },
       "activation offload of what the paged stash holds",
       "the stash owns the saved tensors of the experts",
       "remove expert_fc1, moe_act and fused_group_mlp from activation_offload.modules"},
      {{kStash, kLayerOffload},
       [](const RunConfig& c) { return c.paged_stash.enabled && has_layer_offload(c); },
       "paged stash with layer offload",
       "both would take hold of the same saved tensors",
       "one of them"},
      {{kStash, "moe.rank_capacity_factor"},
       [](const RunConfig& c) { return c.paged_stash.enabled && !c.moe.rank_capacity_factor; },
       "paged stash without a bound on rows",
       "the pool is sized from moe.rank_capacity_factor",
       "set moe.rank_capacity_factor"},
      {{"paged_stash.device_factor", "paged_stash.host_factor"},
       [](const RunConfig& c) {
         return c.paged_stash.enabled && c.paged_stash.device_factor == 0 &&
                c.paged_stash.host_factor == 0;
       },
       "a paged stash without pages",
       "both factors are 0, so every step would overflow and be run twice",
       "paged_stash.device_factor = 1.1"},
      {{kLayerOffload, "model.layers"},
       [](const RunConfig& c) {
         return has_layer_offload(c) && c.layer_offload.layers >= c.model.layers;
       },
       "layer offload of every layer",
       "one layer at least must stay, to hide the first reload",
       "layer_offload.layers below model.layers"},
      {{kLayerOffload, "parallel.pipeline"},
       [](const RunConfig& c) { return has_layer_offload(c) && c.parallel.pipeline > 1; },
       "layer offload with a pipeline",
       "its reloads follow the order of layers of one micro-batch, not of a pipeline schedule",
       "activation_offload instead"},
      {{kLayerOffload, kGranularity},
       [](const RunConfig& c) { return has_layer_offload(c) && c.recompute.granularity != "none"; },
       "layer offload with recompute",
       "a recomputed layer saves nothing that the whole-layer offload could carry",
       "one of them"},
      {{kLayerOffload, kGraph},
       [](const RunConfig& c) { return has_layer_offload(c) && c.cuda_graph.impl == "local"; },
       "layer offload with graphs of modules",
       "captured layers cannot have their saved tensors moved",
       "cuda_graph.impl = none"},
      {{"layer_offload.weights", "model.precision"},
       [](const RunConfig& c) {
         return has_layer_offload(c) && c.layer_offload.weights && c.model.precision != "bf16";
       },
       "layer offload of weights that are their own masters",
       "weights of full precision are the optimizer's masters, which stay on the device, so "
       "nothing "
       "would move",
       "model.precision = bf16, or layer_offload.weights = false"},
      {{kLayerOffload, "layer_offload.activations", "layer_offload.weights"},
       [](const RunConfig& c) {
         return has_layer_offload(c) && !c.layer_offload.activations && !c.layer_offload.weights;
       },
       "layer offload of nothing",
       "neither activations nor weights are to be offloaded",
       "layer_offload.activations = true"},
  };
}

std::vector<Exclusion> recompute_exclusions() {
  return {
      {{kGranularity, "recompute.method", "recompute.num_layers"},
       [](const RunConfig& c) {
         return c.recompute.granularity == "full" &&
                (c.recompute.method == "none" || c.recompute.num_layers == 0);
       },
       "full recompute without a plan",
       "it needs recompute.method and recompute.num_layers",
       "recompute.method = uniform and recompute.num_layers = 1"},
      {{kGranularity, "recompute.method", "recompute.num_layers"},
       [](const RunConfig& c) {
         return c.recompute.granularity != "full" &&
                (c.recompute.method != "none" || c.recompute.num_layers > 0);
       },
       "a plan of layers without full recompute",
       "recompute.method and recompute.num_layers say which whole layers to compute again",
       "recompute.granularity = full, or remove both"},
      {{kRecomputeModules, kGranularity},
       [](const RunConfig& c) {
         return c.recompute.granularity == "selective" && c.recompute.modules.empty();
       },
       "selective recompute of nothing",
       "recompute.modules is empty",
       "[core_attn]"},
      {{kRecomputeModules, kGranularity},
       [](const RunConfig& c) {
         return c.recompute.granularity != "selective" && !c.recompute.modules.empty() &&
                c.recompute.modules != RecomputeTable().modules;
       },
       "modules to compute again without selective recompute",
       "recompute.modules is read with recompute.granularity = selective only",
       "recompute.granularity = selective, or recompute.modules = []"},
      {{kRecomputeModules, "model.attention"},
       [](const RunConfig& c) {
         return recomputes(c, "mla_up_proj") && c.model.attention != "mla";
       },
       "recompute of mla_up_proj without latent attention",
       "only model.attention = mla has that projection",
       "remove mla_up_proj"},
      {{kRecomputeModules, "moe.shared_overlap"},
       [](const RunConfig& c) { return recomputes(c, "shared_experts") && c.moe.shared_overlap; },
       "recompute of shared experts that overlap",
       "the overlap splits them into pieces on another stream",
       "moe.shared_overlap = false"},
      {{kGranularity, kGraph},
       [](const RunConfig& c) {
         return c.recompute.granularity == "full" && c.cuda_graph.impl == "local";
       },
       "full recompute with graphs of modules",
       "a layer that is computed twice cannot be captured piece by piece",
       "cuda_graph.impl = full_iteration"},
      {{kRecomputeModules, kGraphModules},
       [](const RunConfig& c) {
         return recomputes(c, "moe") && c.cuda_graph.impl == "local" &&
                has(c.cuda_graph.modules, "moe_router");
       },
       "recompute of MoE layers whose router is captured",
       "what is computed again would be partly inside of a graph",
       "remove moe from recompute.modules, or moe_router from cuda_graph.modules"},
      {{"recompute.distribute_saved_activations", kGranularity, "parallel.tensor"},
       [](const RunConfig& c) {
         return c.recompute.distribute_saved_activations &&
                (c.recompute.granularity != "full" || c.parallel.tensor == 1);
       },
       "shared saved activations alone",
       "the tensor-parallel ranks share the inputs of fully recomputed layers",
       "recompute.granularity = full and parallel.tensor above 1"},
      {{"recompute.distribute_saved_activations", "parallel.sequence"},
       [](const RunConfig& c) {
         return c.recompute.distribute_saved_activations && c.parallel.sequence;
       },
       "shared saved activations with sequence parallelism",
       "sequence parallelism already shares them",
       "one of them"},
      {{"cuda_graph.warmup_steps", kGraph},
       [](const RunConfig& c) {
         return c.cuda_graph.impl != "none" && c.cuda_graph.warmup_steps == 0;
       },
       "CUDA graphs without a warm-up",
       "tables and plans that are made at their first use must exist when it is recorded",
       "cuda_graph.warmup_steps = 1 or more"},
      {{kGraphModules, kGraph},
       [](const RunConfig& c) {
         return graphs_micro_batches(c.cuda_graph) && !c.cuda_graph.modules.empty();
       },
       "modules of a graph of the iteration",
       "that graph has all modules",
       "remove cuda_graph.modules"},
      {{kGraphModules},
       [](const RunConfig& c) {
         return has(c.cuda_graph.modules, "moe") && (has(c.cuda_graph.modules, "moe_router") ||
                                                     has(c.cuda_graph.modules, "moe_preprocess"));
       },
       "graphs of moe and of parts of it",
       "a graph has no graphs inside",
       "moe alone, or moe_router and moe_preprocess"},
      {{kGraphModules},
       [](const RunConfig& c) {
         return c.cuda_graph.impl == "local" && has(c.cuda_graph.modules, "moe_preprocess") &&
                !has(c.cuda_graph.modules, "moe_router") && !has(c.cuda_graph.modules, "moe");
       },
       "a graph of moe_preprocess without moe_router",
       "the plan that moves tokens is made by the router",
       "moe_router, too"},
      {{kGraph, "run.backend"},
       [](const RunConfig& c) { return c.cuda_graph.impl != "none" && c.run.backend == "cpu"; },
       "CUDA graphs on the CPU",
       "only GPUs replay recorded work",
       "cuda_graph.impl = none"},
  };
}

}  // namespace

const std::vector<Exclusion>& exclusions() {
  static const std::vector<Exclusion> table = [] {
    std::vector<Exclusion> rows = offload_exclusions();
    const std::vector<Exclusion> more = recompute_exclusions();
    rows.insert(rows.end(), more.begin(), more.end());
    return rows;
  }();
  return table;
}

}  // namespace ferry
