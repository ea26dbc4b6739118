#include "app/activation_memory.h"

#include <algorithm>

#include "app/recompute_plan.h"

namespace ferry {

std::vector<std::string> offloaded_modules(const RunConfig& config) {
  const ActivationOffloadTable& table = config.activation_offload;
  if (!table.modules.empty() || table.auto_budget == 0) return table.modules;
  std::vector<std::string> modules{"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm"};
  const RecomputeTable& recompute = config.recompute;
  const bool experts_saved = recompute.granularity != "selective" ||
                             std::find(recompute.modules.begin(), recompute.modules.end(), "moe") ==
                                 recompute.modules.end();
  if (config.paged_stash.enabled || config.moe.experts == 0 || !experts_saved) return modules;
  if (config.moe.fused_experts) {
    modules.push_back("fused_group_mlp");
  } else {
    if (!discarded_labels(recompute).contains(Label::MoePermute)) modules.push_back("expert_fc1");
    modules.push_back("moe_act");
  }
  return modules;
}

std::map<Label, std::string> offloaded_labels(const RunConfig& config) {
  std::map<Label, std::string> labels;
  for (const std::string& module : offloaded_modules(config)) {
    const std::optional<Label> label = label_of(module);
    CHECK(label.has_value(), "no module is called ", module);
    labels[*label] = module;
  }
  if (labels.contains(Label::CoreAttn) &&
      discarded_labels(config.recompute).contains(Label::Layernorm))
    labels[Label::QkNorm] = labels.at(Label::CoreAttn);
  return labels;
}

ActivationOffloadConfig offload_config(const RunConfig& config, int pipeline_rank) {
  const ActivationOffloadTable& table = config.activation_offload;
  ActivationOffloadConfig offload;
  offload.modules = offloaded_labels(config);
  offload.min_tensor_elements = table.min_tensor_elements;
  offload.max_inflight = table.max_inflight;
  offload.takes_back = !config.run.deterministic;
  offload.waits_for_launch = table.delay_until_graph;
  offload.rules = {table.fraction, table.delta_bytes_across_pipeline, pipeline_rank};
  return offload;
}

PagedStashConfig stash_config(const RunConfig& config) {
  // One rank alone gets exactly the rows of its tokens: none of them are padding.
  const bool is_padded = config.parallel.expert * config.parallel.expert_tensor > 1;
  return {config.paged_stash.page_tokens, config.paged_stash.device_factor,
          config.paged_stash.host_factor,
          is_padded ? config.moe.rank_capacity_factor.value_or(1.0) : 1.0};
}

std::vector<std::string> moved_modules(const RunConfig& config) {
  std::vector<std::string> modules;
  if (config.activation_offload.enabled) modules = offloaded_modules(config);
  if (config.paged_stash.enabled && config.paged_stash.host_factor != 0)
    modules.push_back("paged_stash");
  if (config.layer_offload.layers > 0 && config.layer_offload.activations)
    modules.push_back("layer");
  if (config.layer_offload.layers > 0 && config.layer_offload.weights)
    modules.push_back("layer_weights");
  return modules;
}

std::vector<PassAction> pass_actions(const std::vector<Action>& actions) {
  std::vector<PassAction> passes;
  for (const Action& action : actions)
    passes.push_back({action.kind == Action::Kind::Forward, {action.chunk, action.micro}});
  return passes;
}

ActivationMemory::ActivationMemory(const RunConfig& config, Device& device, int pipeline_rank)
    : discarded_(discarded_labels(config.recompute)) {
  const ActivationOffloadTable& table = config.activation_offload;
  if (table.enabled && table.auto_budget > 0) {
    auto chosen = std::make_unique<AutoOffload>(device, offload_config(config, pipeline_rank),
                                                table.auto_budget, &saved_bytes_);
    auto_ = chosen.get();
    offload_ = &chosen->offload();
    movers_.push_back(std::move(chosen));
  } else if (table.enabled) {
    auto offload = std::make_unique<ActivationOffload>(
        device, offload_config(config, pipeline_rank), &saved_bytes_);
    offload_ = offload.get();
    movers_.push_back(std::move(offload));
  }
  const LayerOffloadTable& layers = config.layer_offload;
  if (layers.layers > 0) {
    auto offload = std::make_unique<LayerOffload>(
        device,
        LayerOffloadConfig{layers.layers, config.model.layers, layers.activations,
                           layers.double_buffering, layers.retain_pinned_buffers},
        &saved_bytes_);
    layers_ = offload.get();
    movers_.push_back(std::move(offload));
  }
  if (config.paged_stash.enabled) {
    auto stash = std::make_unique<PagedStash>(device, stash_config(config));
    stash_ = stash.get();
    movers_.push_back(std::move(stash));
  }
}

void ActivationMemory::before_forward(Pass& pass, int block_idx) {
  if (layers_ != nullptr) layers_->before_forward(pass, block_idx);
}

void ActivationMemory::begin_step(const std::vector<Action>& actions, Stream& compute,
                                  bool launches) {
  policies_.clear();
  if (!launches) saved_bytes_.reset_peak();
  const std::vector<PassAction> passes = pass_actions(actions);
  for (const auto& mover : movers_) mover->begin_step(passes, compute);
}

TapePolicy* ActivationMemory::policy(PassId pass) {
  if (discarded_.empty() && movers_.empty()) return nullptr;
  std::vector<TapePolicy*> movers;
  for (const auto& mover : movers_) movers.push_back(&mover->policy(pass));
  return &policies_.try_emplace(pass, discarded_, std::move(movers)).first->second;
}

void ActivationMemory::end_step(Stream& compute) {
  if (auto_ != nullptr && auto_->times_step()) peak_without_offload_ = saved_bytes_.peak();
  for (const auto& mover : movers_) mover->end_step(compute);
}

bool ActivationMemory::is_settled() const {
  return std::all_of(movers_.begin(), movers_.end(),
                     [](const auto& mover) { return mover->is_settled(); });
}

void ActivationMemory::before_recording() {
  for (const auto& mover : movers_) mover->before_recording();
}

void ActivationMemory::launched(PassId pass) {
  for (const auto& mover : movers_) mover->launched(pass);
}

void ActivationMemory::part_launched(Stream& compute) {
  for (const auto& mover : movers_) mover->part_launched(compute);
}

TrafficByModule ActivationMemory::traffic() const {
  TrafficByModule all;
  for (const auto& mover : movers_) all.merge(mover->traffic());
  return all;
}

std::optional<std::map<std::string, int64_t>> ActivationMemory::summary() const {
  if (offload_ == nullptr || offload_->plan() == nullptr) return std::nullopt;
  if (auto_ != nullptr && !auto_->choice()) return std::nullopt;
  return offload_->summary();
}

std::string ActivationMemory::auto_report() const {
  if (auto_ == nullptr || auto_->seconds_with() == 0) return "";
  return auto_offload_text(*auto_, peak_without_offload_ - saved_bytes_.peak());
}

}  // namespace ferry
