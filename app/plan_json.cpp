#include <nlohmann/json.hpp>

#include "app/plan.h"
#include "app/plan_command.h"

namespace ferry {
namespace {

using nlohmann::ordered_json;

template <class Pairs>
ordered_json object(const Pairs& pairs) {
  ordered_json json = ordered_json::object();
  for (const auto& [name, value] : pairs) json[name] = value;
  return json;
}

// What a layer saves, and what of it copies hide.
void add_layer(ordered_json& json, const std::string& kind, const LayerPlan& layer) {
  if (layer.costs.empty()) return;
  ordered_json saved = ordered_json::object(), ratios = ordered_json::object();
  for (const ActivationCost& cost : layer.costs) {
    saved[std::string(cost.module)] = cost.bytes_per_token;
    ratios[std::string(cost.module)] = layer.copy_ratio(cost.bytes_per_token);
  }
  json["saved_bytes_per_token_of_" + kind] = saved;
  json["forward_flops_per_token_of_" + kind] = layer.forward_flops;
  json["hidden_bytes_per_token_of_" + kind] = layer.hidden_bytes;
  json["copy_to_forward_ratio_of_" + kind] = ratios;
}

// Null if nothing is offloaded.
ordered_json offload_of(const ActivationForecast& stage) {
  if (!stage.offload) return nullptr;
  const OffloadForecast& step = stage.offload->forecast;
  ordered_json modules = ordered_json::object();
  for (const auto& [module, moved] : step.traffic)
    modules[module] = {{"d2h_bytes", moved.d2h_bytes},
                       {"h2d_bytes", moved.h2d_bytes},
                       {"exposed_s", moved.exposed_s}};
  return {{"modules", modules},
          {"d2h_bytes", step.d2h_bytes()},
          {"h2d_bytes", step.h2d_bytes()},
          {"exposed_s", {{"d2h", step.exposed_d2h_s}, {"h2d", step.exposed_h2d_s}}},
          {"step_s", step.step_s},
          {"step_without_s", step.step_without_s},
          {"cost", step.cost()},
          {"saved_bytes", step.saved_bytes()},
          {"activation_bytes_without", stage.bytes_without},
          {"groups_of_a_pass", stage.offload->num_groups},
          {"candidates_of_a_pass", stage.offload->num_candidates}};
}

ordered_json optimizer_of(const OptimizerBytes& bytes) {
  return {{"device_masters", bytes.device_masters},
          {"device_moments", bytes.device_moments},
          {"host_masters", bytes.host_masters},
          {"host_moments", bytes.host_moments},
          {"gradient_staging", bytes.gradient_staging},
          {"value_staging", bytes.value_staging},
          {"d2h_bytes", bytes.d2h},
          {"h2d_bytes", bytes.h2d}};
}

// Null where it is chosen in the run.
ordered_json fraction_of(const Plan& plan, const OptimizerOffloadTable& offload) {
  if (!offload.enabled) return 0.0;
  const std::optional<double> fraction = offload.fraction ? offload.fraction : plan.chosen_fraction;
  return fraction ? ordered_json(*fraction) : ordered_json(nullptr);
}

}  // namespace

std::string plan_json(const RunConfig& config, int64_t ranks, const MachineRates& rates) {
  return plan_json(make_plan(config, ranks, rates), config, ranks);
}

std::string plan_json(const Plan& plan, const RunConfig& config, int64_t ranks) {
  const MachineRates& rates = plan.rates;
  ordered_json json;
  json["run"] = config.run.name;
  json["ranks"] = ranks;
  json["grid"] = object(plan.grid);
  json["layers"] = config.model.layers;
  json["moe_layers"] = plan.moe_layers;
  json["layout"] = layout_text(plan.stages);
  json["layers_per_stage"] = layers_per_stage(plan);
  if (plan.moe_layers > 0) json["experts_per_rank"] = plan.experts_per_rank;
  json["parameters"] = object(rows(plan.parameters));
  json["flops_per_token"] = {{"total", plan.flops.total()},
                             {"matmul", plan.flops.matmul},
                             {"attention", plan.flops.attention}};
  json["tokens_per_step"] = plan.tokens_per_step;
  json["flops_per_step"] = plan.flops.total() * static_cast<double>(plan.tokens_per_step);
  json["microbatches"] = plan.num_microbatches;
  json["bubble"] = plan.simulation.bubble;
  json["schedule"] = ordered_json::array();
  for (size_t pp = 0; pp < plan.schedules.size(); ++pp) {
    std::string line;
    for (const Action& action : plan.schedules[pp])
      line += (line.empty() ? "" : " ") + action_text(action, plan.shape.num_chunks);
    json["schedule"].push_back({{"rank", pp},
                                {"peak_in_flight", plan.simulation.ranks[pp].peak_in_flight},
                                {"actions", line}});
  }
  json["rates"] = {{"link_gb_s", rates.link_bytes_per_s / 1e9},
                   {"tflops", rates.compute_flop_per_s / 1e12}};
  add_layer(json, "dense_layer", plan.dense_layer);
  add_layer(json, "moe_layer", plan.moe_layer);
  json["memory_bytes_per_rank"] = ordered_json::array();
  for (const MemoryEstimate& memory : plan.memory)
    json["memory_bytes_per_rank"].push_back(object(rows(memory)));
  json["pinned_host_bytes_per_rank"] = ordered_json::array();
  for (const MemoryEstimate& memory : plan.memory)
    json["pinned_host_bytes_per_rank"].push_back(memory.host);
  json["pageable_host_bytes_per_rank"] = ordered_json::array();
  json["save_host_bytes_per_rank"] = ordered_json::array();
  json["optimizer_bytes_per_rank"] = ordered_json::array();
  for (const MemoryEstimate& memory : plan.memory) {
    json["pageable_host_bytes_per_rank"].push_back(memory.pageable);
    json["save_host_bytes_per_rank"].push_back(
        {{"staging", memory.save_staging}, {"copies", memory.save_copies}});
    json["optimizer_bytes_per_rank"].push_back(optimizer_of(memory.optimizer_bytes));
  }
  json["optimizer_offload_fraction"] = fraction_of(plan, config.optimizer.offload);
  json["activation_bytes_per_rank"] = ordered_json::array();
  json["predicted_offload_per_rank"] = ordered_json::array();
  for (const ActivationForecast& stage : plan.activations) {
    json["activation_bytes_per_rank"].push_back(object(stage.by_module));
    json["predicted_offload_per_rank"].push_back(offload_of(stage));
  }
  json["megatron_estimate"] = {{"weights_and_optimizer", plan.megatron.weights_and_optimizer},
                               {"activations", plan.megatron.activations},
                               {"total", plan.megatron.total()}};
  return json.dump(2) + "\n";
}

}  // namespace ferry
