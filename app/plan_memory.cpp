// The parts of a plan that are about memory.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "app/gib.h"
#include "app/plan.h"
#include "app/stage_table.h"

namespace ferry {
namespace {

std::string rates_text(const MachineRates& rates) {
  return fmt::format("{:g} GB/s and {:g} TFLOP/s", rates.link_bytes_per_s / 1e9,
                     rates.compute_flop_per_s / 1e12);
}

std::string saved_table(const char* title, const LayerPlan& layer, const MachineRates& rates) {
  if (layer.costs.empty()) return "";
  const auto row = [&](std::string_view module, int64_t bytes, std::string_view what) {
    return fmt::format("  {:<16}{:>14}{:>8.2f}{}{}\n", module, with_commas(bytes),
                       layer.copy_ratio(bytes), what.empty() ? "" : "  ", what);
  };
  int64_t total = 0;
  std::string text = fmt::format("\n{}, bytes per token | copy / forward\n", title);
  for (const ActivationCost& cost : layer.costs) {
    total += cost.bytes_per_token;
    text += row(cost.module, cost.bytes_per_token, cost.name);
  }
  text += row("total", total, "");
  const auto hidden = static_cast<int64_t>(layer.hidden_bytes);
  return text + row("can hide", hidden,
                    fmt::format("behind forward at {} (predicted); {} in 1F1B", rates_text(rates),
                                with_commas(3 * hidden)));
}

// The stage whose step moves most.
size_t busiest_stage(const Plan& plan) {
  size_t busiest = 0;
  int64_t most = -1;
  for (size_t pp = 0; pp < plan.activations.size(); ++pp) {
    const auto& offload = plan.activations[pp].offload;
    if (!offload || offload->forecast.d2h_bytes() <= most) continue;
    busiest = pp;
    most = offload->forecast.d2h_bytes();
  }
  return busiest;
}

// " of pipeline rank 3", unless there is but one.
std::string of_stage(const Plan& plan, size_t pp) {
  return plan.activations.size() == 1 ? "" : fmt::format(" of pipeline rank {}", pp);
}

bool moves_weights(const RunConfig& config) {
  return config.layer_offload.layers > 0 && config.layer_offload.weights;
}

}  // namespace

std::string saved_tables(const Plan& plan) {
  return saved_table("saved by a dense layer", plan.dense_layer, plan.rates) +
         saved_table("saved by a MoE layer (balanced routing)", plan.moe_layer, plan.rates);
}

std::string memory_tables(const Plan& plan) {
  StageTable memory(plan), activations(plan);
  for (size_t i = 0; i < rows(plan.memory[0]).size(); ++i)
    memory.row(rows(plan.memory[0])[i].first,
               [&](size_t pp) { return rows(plan.memory[pp])[i].second; });
  memory.row("pinned, on host", [&](size_t pp) { return plan.memory[pp].host; });
  memory.row("pageable, on host", [&](size_t pp) { return plan.memory[pp].pageable; });
  memory.row("for saves, on host",
             [&](size_t pp) { return plan.memory[pp].save_staging + plan.memory[pp].save_copies; });
  std::set<Label> labels;  // in the order of a layer
  for (const ActivationForecast& stage : plan.activations)
    for (const auto& [module, bytes] : stage.by_module) labels.insert(label_of(module).value());
  for (const Label label : labels) {
    const std::string module(name_of(label));
    activations.row(module, [&](size_t pp) {
      const auto& own = plan.activations[pp].by_module;
      const auto found = own.find(module);
      return found == own.end() ? 0 : found->second;
    });
  }
  return "\nmemory of a rank, GiB\n" + memory.text() +
         "\nits activations at their peak by module, GiB\n" + activations.text();
}

std::string offload_line(const Plan& plan, const RunConfig& config) {
  const size_t pp = busiest_stage(plan);
  const auto& offload = plan.activations[pp].offload;
  std::string text;
  if (offload)
    text = fmt::format("{:.2f} GB to the host and back per step{}, {:.1f} % slower (predicted)",
                       static_cast<double>(offload->forecast.d2h_bytes()) / 1e9, of_stage(plan, pp),
                       100 * offload->forecast.cost());
  if (moves_weights(config))
    text += fmt::format("{}the weights of the first {} layers", text.empty() ? "" : ", and ",
                        config.layer_offload.layers);
  int64_t optimizer = 0;
  for (const MemoryEstimate& memory : plan.memory)
    optimizer = std::max(optimizer, memory.optimizer_bytes.host_state());
  if (optimizer > 0)
    text += fmt::format("{}{:.2f} GB of optimizer state", text.empty() ? "" : ", and ",
                        static_cast<double>(optimizer) / 1e9);
  return fmt::format("offload     {}\n", text.empty() ? "nothing" : text);
}

std::string offload_tables(const Plan& plan, const RunConfig& config) {
  const size_t pp = busiest_stage(plan);
  const ActivationForecast& stage = plan.activations[pp];
  if (!stage.offload) return "";
  const OffloadForecast& step = stage.offload->forecast;
  std::string text = fmt::format(
      "\noffload in a step{}, predicted at {} (--link-gb-s, --tflops)\n"
      "  {:<16}{:>14}{:>14}{:>14}\n",
      of_stage(plan, pp), rates_text(plan.rates), "module", "to host GB", "to device GB",
      "waits ms");
  const auto row = [&](const std::string& name, int64_t d2h, int64_t h2d, double waits_s) {
    return fmt::format("  {:<16}{:>14.3f}{:>14.3f}{:>14.2f}\n", name,
                       static_cast<double>(d2h) / 1e9, static_cast<double>(h2d) / 1e9,
                       1e3 * waits_s);
  };
  std::map<Label, ModuleTraffic> modules;  // in the order of a layer
  for (const auto& [module, moved] : step.traffic) modules[label_of(module).value()] = moved;
  for (const auto& [label, moved] : modules)
    text += row(std::string(name_of(label)), moved.d2h_bytes, moved.h2d_bytes, moved.exposed_s);
  text += row("total", step.d2h_bytes(), step.h2d_bytes(), step.exposed_d2h_s + step.exposed_h2d_s);
  text += fmt::format("  {:<16}{:.1f} ms, {:.1f} without offload ({:+.2f} %)\n", "step",
                      1e3 * step.step_s, 1e3 * step.step_without_s, 100 * step.cost());
  text += fmt::format("  {:<16}{:.3f} GiB at their peak with copies, {:.3f} without offload\n",
                      "activations", gib(stage.bytes() + stage.copies + stage.stash),
                      gib(stage.bytes_without));
  const double budget = config.activation_offload.auto_budget;
  text += fmt::format("  {:<16}{} of {} in a pass move", "groups", stage.offload->num_groups,
                      stage.offload->num_candidates);
  if (config.activation_offload.enabled && budget > 0)
    text += fmt::format(": the choice of auto_budget = {:g}", budget);
  if (moves_weights(config)) text += "\n  copies of weights are not counted here";
  return text + "\n";
}

std::string megatron_table(const Plan& plan, const RunConfig& config) {
  const MemoryEstimate& own = plan.memory[0];
  const auto row = [](const char* name, double ours, double theirs) {
    return fmt::format("  {:<20}{:>10.3f}{:>14.3f}\n", name, gib(ours), gib(theirs));
  };
  const auto weights = static_cast<double>(own.weights + own.gradients + own.optimizer);
  const auto activations = static_cast<double>(own.activations + own.copies + own.stash);
  return fmt::format(
             "\nbeside Megatron-LM's estimator, which takes every layer for a dense one of width "
             "{}; GiB\n  {:<20}{:>10}{:>14}\n",
             config.model.ffn, "pipeline rank 0", "ferry", "Megatron-LM") +
         row("weights + optimizer", weights, plan.megatron.weights_and_optimizer) +
         row("activations", activations, plan.megatron.activations) +
         row("total", weights + activations, plan.megatron.total());
}

}  // namespace ferry
