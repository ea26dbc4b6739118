#include "app/plan.h"

#include "app/model_layout.h"
#include "app/rank_memory.h"

namespace ferry {
namespace {

LayerPlan layer_plan(const RunConfig& config, bool is_moe, const MachineRates& rates) {
  const GptConfig gpt = config.gpt();
  const ModuleShares shares = module_shares(config.parallel);
  LayerPlan layer;
  layer.costs = activation_costs(gpt, is_moe, shares, saved_policies(config.recompute));
  layer.forward_flops = forward_flops(gpt, is_moe).total() / static_cast<double>(shares.tensor);
  layer.hidden_bytes = layer.forward_flops / rates.compute_flop_per_s * rates.link_bytes_per_s;
  return layer;
}

std::optional<double> chosen_fraction(const RunConfig& config, int64_t ranks,
                                      const std::vector<ActivationForecast>& activations,
                                      int64_t device_bytes) {
  const OptimizerOffloadTable& offload = config.optimizer.offload;
  if (!offload.enabled || offload.fraction || offload.auto_goal != "memory" || device_bytes == 0)
    return std::nullopt;
  return fraction_that_fits(config, ranks, activations, device_bytes);
}

}  // namespace

Plan make_plan(const RunConfig& config, int64_t ranks, const MachineRates& rates) {
  const GptConfig gpt = config.gpt();
  const ParallelTable& grid = config.parallel;
  Plan plan;
  plan.rates = rates;
  plan.grid = {{"data", config.data_parallel(ranks)},
               {"tensor", grid.tensor},
               {"context", grid.context},
               {"pipeline", grid.pipeline},
               {"expert", grid.expert},
               {"expert_tensor", grid.expert_tensor},
               {"expert_data", ranks / (grid.expert * grid.expert_tensor * grid.pipeline)}};
  plan.stages = model_stages(config);
  plan.moe_layers = num_moe_layers(gpt);
  plan.experts_per_rank = gpt.moe.experts / grid.expert;
  plan.parameters = count_parameters(gpt);
  plan.flops = flops_per_token(gpt);
  plan.tokens_per_step = config.global_batch(ranks) * gpt.model.seq;
  plan.num_microbatches = config.num_microbatches(ranks);
  plan.dense_layer = layer_plan(config, false, rates);
  plan.moe_layer = layer_plan(config, true, rates);
  for (int pp = 0; pp < grid.pipeline; ++pp)
    plan.activations.push_back(forecast_activations(config, ranks, pp, rates));
  plan.chosen_fraction = chosen_fraction(config, ranks, plan.activations, rates.device_bytes);
  const RunConfig decided =
      plan.chosen_fraction ? with_fraction(config, *plan.chosen_fraction) : config;
  for (int pp = 0; pp < grid.pipeline; ++pp)
    plan.memory.push_back(
        stage_memory(decided, ranks, pp, plan.activations[static_cast<size_t>(pp)]));
  plan.megatron = megatron_estimate(config, ranks);
  plan.shape = training_schedule(config, ranks);
  plan.schedules = make_schedules(plan.shape);
  plan.simulation = simulate(plan.shape, plan.schedules);
  return plan;
}

std::vector<std::pair<std::string, int64_t>> rows(const ParameterCount& count) {
  return {{"embedding", count.embedding},
          {"attention", count.attention},
          {"dense_mlp", count.dense_mlp},
          {"experts", count.experts},
          {"shared_experts", count.shared_experts},
          {"router", count.router},
          {"norms", count.norms},
          {"head", count.head},
          {"total", count.total()},
          {"active", count.active()}};
}

std::vector<std::pair<std::string, int64_t>> rows(const MemoryEstimate& bytes) {
  return {{"weights", bytes.weights},     {"gradients", bytes.gradients},
          {"optimizer", bytes.optimizer}, {"activations", bytes.activations},
          {"copies", bytes.copies},       {"stash", bytes.stash},
          {"logits", bytes.logits},       {"workspace", bytes.workspace},
          {"total", bytes.total()}};
}

std::vector<int64_t> layers_per_stage(const Plan& plan) {
  std::vector<int64_t> layers;
  for (const StageLayers& stage : plan.stages) layers.push_back(stage.num_layers);
  return layers;
}

std::string with_commas(int64_t value) {
  std::string text = std::to_string(value);
  for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<size_t>(at), 1, ',');
  }
  return text;
}

}  // namespace ferry
