#include "app/activation_forecast.h"

#include <algorithm>
#include <limits>
#include <set>

#include "app/activation_memory.h"
#include "app/model/cost_model.h"
#include "app/model_layout.h"
#include "app/recompute_plan.h"
#include "app/saved_step.h"

namespace ferry {
namespace {

// Of a pass through each chunk, the groups that move in any pass, and those that have bytes.
void count_groups(BudgetChoice& choice) {
  std::set<std::pair<int, size_t>> moving, candidates;
  for (const PassGroups& pass : choice.passes) {
    for (size_t i = 0; i < pass.groups.size(); ++i) {
      if (pass.groups[i].bytes == 0) continue;
      candidates.insert({pass.pass.chunk, i});
      if (pass.groups[i].offload) moving.insert({pass.pass.chunk, i});
    }
  }
  choice.num_groups = std::ssize(moving);
  choice.num_candidates = std::ssize(candidates);
}

// Of layers, their groups say themselves what moves.
BudgetChoice choose(const ActivationOffloadTable& table, const OffloadRules& rules,
                    const std::vector<PassAction>& actions, std::vector<PassGroups> passes,
                    const OffloadConditions& conditions) {
  if (table.enabled && table.auto_budget > 0)
    return choose_groups(actions, std::move(passes), conditions, table.auto_budget);
  BudgetChoice choice;
  choice.passes = std::move(passes);
  if (table.enabled) plan_offload(choice.passes, rules);
  choice.forecast = simulate_offload(actions, choice.passes, conditions);
  count_groups(choice);
  return choice;
}

// What copies to the host hold: the peak less that of copies that take no time.
int64_t copy_bytes(const BudgetChoice& choice, const std::vector<PassAction>& actions,
                   OffloadConditions conditions) {
  conditions.d2h_bytes_per_s = conditions.h2d_bytes_per_s = std::numeric_limits<double>::infinity();
  const OffloadForecast at_once = simulate_offload(actions, choice.passes, conditions);
  return std::max<int64_t>(0, choice.forecast.peak_bytes - at_once.peak_bytes);
}

// Two buffers, each of the largest layer that moves.
int64_t buffer_bytes(const std::vector<OffloadGroup>& layers) {
  int64_t largest = 0;
  for (const OffloadGroup& layer : layers)
    if (layer.offload) largest = std::max(largest, layer.bytes);
  return 2 * largest;
}

int64_t pool_bytes(const std::map<PoolKey, StashPeak>& peaks, double factor, int64_t page_rows) {
  int64_t bytes = 0;
  for (const auto& [pool, peak] : peaks)
    bytes += num_stash_pages(peak, factor, page_rows) * page_rows * pool.width *
             static_cast<int64_t>(size_of(pool.dtype));
  return bytes;
}

}  // namespace

ModuleShares module_shares(const ParallelTable& parallel) {
  return {parallel.tensor, parallel.sequence, parallel.expert, parallel.expert_tensor};
}

SavedPolicies saved_policies(const RecomputeTable& table) {
  return {discarded_labels(table), gpt_recompute(table)};
}

int64_t ActivationForecast::bytes() const {
  int64_t bytes = 0;
  for (const auto& [module, own] : by_module) bytes += own;
  return bytes;
}

ActivationForecast forecast_activations(const RunConfig& config, int64_t ranks, int pp,
                                        const MachineRates& rates) {
  const GptConfig gpt = config.gpt();
  const ModuleShares shares = module_shares(config.parallel);
  const SavedPolicies policies = saved_policies(config.recompute);
  const int64_t tokens = config.batch.micro * gpt.model.seq;

  SavedStep step;
  step.actions = pass_actions(make_schedule(training_schedule(config, ranks), pp));
  const ActivationOffloadConfig offload = offload_config(config, pp);
  if (config.activation_offload.enabled)
    step.offloaded = {offload.modules, offload.min_tensor_elements};
  if (config.layer_offload.activations)
    step.layers = {config.layer_offload.layers, config.model.layers};
  const PagedStashConfig stash = stash_config(config);
  step.stash = config.paged_stash.enabled;
  step.stash_capacity_factor = stash.capacity_factor;

  OffloadConditions conditions;
  conditions.d2h_bytes_per_s = conditions.h2d_bytes_per_s = rates.link_bytes_per_s;
  conditions.max_inflight = offload.max_inflight;
  const bool has_layers = step.layers.num_layers > 0;
  std::vector<std::vector<OffloadGroup>> groups;  // by chunk
  for (const ModelPart& part : model_parts(config, pp)) {
    const PassRecords& chunk =
        step.chunks.emplace_back(pass_records(gpt, part, tokens, shares, policies));
    groups.push_back(has_layers ? layer_groups(chunk, step.layers.num_layers)
                                : offload_groups(chunk, step.offloaded));
    const PassTimes times =
        pass_times(gpt, part, tokens, shares, policies.recompute, rates.compute_flop_per_s);
    conditions.chunks.push_back({times.forward_s, times.backward_s});
  }

  ActivationForecast forecast;
  if (has_layers || config.activation_offload.enabled) {
    std::vector<PassGroups> passes;
    for (const PassId& pass : backward_order(step.actions))
      passes.push_back({pass, groups.at(static_cast<size_t>(pass.chunk))});
    forecast.offload = choose(config.activation_offload, offload.rules, step.actions,
                              std::move(passes), conditions);
    step.moving = moving_groups(step.actions, forecast.offload->passes);
  }

  const SavedStepMemory memory = run_step(step);
  forecast.by_module = memory.ledger.at_peak();
  forecast.peak_of_module = memory.ledger.peaks();
  forecast.copies = memory.ledger.peak_beside();
  forecast.host = memory.ledger.host_peak();
  forecast.bytes_without = run_step({step.actions, step.chunks}).ledger.peak();
  if (config.activation_offload.enabled)
    forecast.copies += copy_bytes(*forecast.offload, step.actions, conditions);
  if (has_layers && config.layer_offload.double_buffering)
    forecast.copies += buffer_bytes(groups.at(0));
  if (step.stash) {
    const auto peaks =
        stash_peaks(step.actions, memory.stashed, stash.page_tokens, stash.capacity_factor);
    forecast.stash = pool_bytes(peaks, stash.device_factor, stash.page_tokens);
    forecast.host += pool_bytes(peaks, stash.host_factor, stash.page_tokens);
  }
  return forecast;
}

}  // namespace ferry
