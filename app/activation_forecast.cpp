#include "app/activation_forecast.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "app/activation_memory.h"
#include "app/model/cost_model.h"
#include "app/model_layout.h"
#include "app/recompute_plan.h"
#include "app/saved_groups.h"

namespace ferry {
namespace {

MovedTensors moved_tensors(const RunConfig& config) {
  MovedTensors moved;
  if (config.activation_offload.enabled) {
    moved.modules = offloaded_labels(config);
    moved.min_tensor_elements = config.activation_offload.min_tensor_elements;
  }
  if (config.layer_offload.activations) moved.first_layers = config.layer_offload.layers;
  moved.stash = config.paged_stash.enabled;
  return moved;
}

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

BudgetChoice choose(const RunConfig& config, int pp, const std::vector<PassAction>& actions,
                    std::vector<PassGroups> passes, const OffloadConditions& conditions) {
  const ActivationOffloadTable& table = config.activation_offload;
  if (table.enabled && table.auto_budget > 0)
    return choose_groups(actions, std::move(passes), conditions, table.auto_budget);
  BudgetChoice choice;
  choice.passes = std::move(passes);
  if (table.enabled)
    plan_offload(choice.passes, {table.fraction, table.delta_bytes_across_pipeline, pp});
  choice.forecast = simulate_offload(actions, choice.passes, conditions);
  count_groups(choice);
  return choice;
}

// What copies hold beside the tensors that stay: the peak less that of copies that take no time.
int64_t copy_bytes(const BudgetChoice& choice, const std::vector<PassAction>& actions,
                   OffloadConditions conditions) {
  conditions.d2h_bytes_per_s = conditions.h2d_bytes_per_s = std::numeric_limits<double>::infinity();
  const OffloadForecast at_once = simulate_offload(actions, choice.passes, conditions);
  return std::max<int64_t>(0, choice.forecast.peak_bytes - at_once.peak_bytes);
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
  const std::vector<PassAction> actions =
      pass_actions(make_schedule(training_schedule(config, ranks), pp));
  const MovedTensors moved = moved_tensors(config);

  std::vector<PassRecords> chunks;
  OffloadConditions conditions;
  conditions.d2h_bytes_per_s = conditions.h2d_bytes_per_s = rates.link_bytes_per_s;
  conditions.max_inflight = config.activation_offload.max_inflight;
  for (const ModelPart& part : model_parts(config, pp)) {
    chunks.push_back(pass_records(gpt, part, tokens, shares, policies));
    const PassTimes times =
        pass_times(gpt, part, tokens, shares, policies.recompute, rates.compute_flop_per_s);
    conditions.chunks.push_back({times.forward_s, times.backward_s});
  }

  ActivationForecast forecast;
  std::map<PassId, PassGroups> moving;
  if (!moved.modules.empty() || moved.first_layers > 0) {
    std::vector<std::vector<OffloadGroup>> groups;
    for (const PassRecords& chunk : chunks)
      groups.push_back(moved.modules.empty() ? layer_groups(chunk, moved.first_layers)
                                             : offload_groups(chunk, moved));
    std::vector<PassGroups> passes;
    for (const PassId& pass : backward_order(actions))
      passes.push_back({pass, groups.at(static_cast<size_t>(pass.chunk))});
    forecast.offload = choose(config, pp, actions, std::move(passes), conditions);
    forecast.copies = copy_bytes(*forecast.offload, actions, conditions);
    for (PassGroups& pass : moving_groups(actions, forecast.offload->passes))
      moving[pass.pass] = std::move(pass);
  }

  SavedLedger ledger;
  std::map<PassId, SavedTape> tapes;
  std::map<PassId, int64_t> stashed;
  int64_t in_stash = 0, most_in_stash = 0;
  for (size_t i = 0; i < actions.size(); ++i) {
    const PassId id = actions[i].pass;
    const PassRecords& costs = chunks.at(static_cast<size_t>(id.chunk));
    if (!actions[i].forward) {
      SavedTape& tape = tapes.at(id);
      while (!tape.empty()) tape.load();
      tapes.erase(id);
      in_stash -= stashed[id];
      continue;
    }
    SavedTape& tape = tapes.try_emplace(id, costs.tensors, ledger).first->second;
    SavedForward forward(costs, moved, tape,
                         [&](size_t group) { return moving.at(id).groups.at(group).offload; });
    forward.run(i + 1 < actions.size() && actions[i + 1] == PassAction{false, id});
    stashed[id] = forward.stashed();
    in_stash += stashed[id];
    most_in_stash = std::max(most_in_stash, in_stash);
  }
  forecast.by_module = ledger.at_peak();
  forecast.peak_of_module = ledger.peaks();

  // The stash takes the rows that are in use, and its pool is a multiple of their peak.
  const double factor = config.moe.rank_capacity_factor.value_or(1.0);
  const double padding = shares.expert * shares.expert_tensor > 1 ? factor : 1.0;
  forecast.stash = static_cast<int64_t>(static_cast<double>(most_in_stash) / padding *
                                        std::abs(config.paged_stash.device_factor));
  return forecast;
}

}  // namespace ferry
