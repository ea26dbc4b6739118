#include "app/train_model.h"

#include <map>

#include "app/cpu_binding.h"
#include "app/graph_plan.h"
#include "app/host_sum.h"
#include "app/optimizer_rule.h"
#include "core/host_copy.h"

namespace ferry {
namespace {

LrSchedule lr_schedule(const OptimizerTable& optimizer) {
  LrSchedule schedule;
  schedule.kind = lr_kind(optimizer.schedule);
  schedule.lr = optimizer.lr;
  schedule.min_lr = optimizer.min_lr;
  schedule.warmup_steps = optimizer.warmup_steps;
  schedule.decay_steps = optimizer.decay_steps;
  schedule.wsd_decay = optimizer.wsd_decay;
  schedule.check();
  return schedule;
}

// Until rates are known, everything that may be on the host is there.
HybridSettings hybrid_settings(const OptimizerTable& optimizer, int ranks_of_host) {
  const OptimizerOffloadTable& offload = optimizer.offload;
  HybridSettings settings;
  settings.fraction = offload.fraction.value_or(1.0);
  settings.part = offload.takes_last() ? HostPart::Last : HostPart::First;
  settings.overlap = offload.overlap_d2h_h2d;
  settings.pin_gradients = offload.pin_grads;
  settings.pin_values = offload.pin_params;
  const auto cpus = static_cast<int64_t>(allowed_cpus().size());
  settings.num_threads = static_cast<int>(
      offload.threads > 0 ? offload.threads : std::max<int64_t>(1, cpus / ranks_of_host));
  settings.moment_types = moment_types(optimizer);
  return settings;
}

}  // namespace

TrainModel::TrainModel(const RunConfig& config, Stream& stream, const MeshGroups& groups,
                       int ranks_of_host)
    : config_(config),
      graphs_(config.cuda_graph),
      model_(config, stream, groups),
      memory_(std::make_unique<ActivationMemory>(config, stream.device(), groups.coordinates().pp)),
      groups_(reduce_groups(groups)),
      blocks_(model_.parameters_by_block()),
      buckets_(stream, blocks_, groups_, config.optimizer.distributed),
      reducer_(buckets_, groups_, stream.device(), config.optimizer.overlap_grad_reduce),
      shards_(make_shards(model_.parameters(), groups_)),
      updated_(config.optimizer.distributed ? pointers(shards_) : model_.parameters()),
      gather_(blocks_, groups_, stream.device(), config.optimizer.overlap_param_gather),
      rule_(make_update_rule(config.optimizer)),
      store_(make_store(config, stream, ranks_of_host)),
      optimizer_(stream, pointers(shards_), *rule_, *store_),
      hooks_(*this),
      schedule_(lr_schedule(config.optimizer)) {
  model_.part_graphs().on_launch([this](Stream& compute) { memory_->part_launched(compute); });
  if (!config.layer_offload.weights || memory_->layer_offload() == nullptr) return;
  weights_ = std::make_unique<WeightOffload>(memory_->layer_offload()->engine(), blocks_,
                                             config.layer_offload.layers, pointers(shards_));
  weights_->send_all(stream);
}

std::unique_ptr<StateStore> TrainModel::make_store(const RunConfig& config, Stream& stream,
                                                   int ranks_of_host) {
  if (!config.optimizer.offload.enabled)
    return std::make_unique<DeviceStateStore>(stream, updated_, *rule_,
                                              moment_types(config.optimizer));
  std::map<const Parameter*, Parameter*> updated;  // by the parameter of the model
  for (size_t i = 0; i < updated_.size(); ++i) updated[model_.parameters()[i]] = updated_[i];
  std::vector<std::vector<Parameter*>> blocks = blocks_;
  for (auto& block : blocks)
    for (Parameter*& parameter : block) parameter = updated.at(parameter);
  auto hybrid = std::make_unique<HybridDeviceOptimizer>(
      stream, std::move(blocks), *rule_, hybrid_settings(config.optimizer, ranks_of_host));
  hybrid_ = hybrid.get();
  return hybrid;
}

std::vector<OptimizerPlace> TrainModel::optimizer_places() const {
  if (hybrid_ != nullptr) return hybrid_->places();
  return place_optimizer({updated_.begin(), updated_.end()}, 0.0, HostPart::First);
}

void TrainModel::send_gradients(Stream& stream, int block) {
  for (const ReduceAxis axis : kReduceAxes)
    if (const auto final = reducer_.final_event(stream, block, axis))
      store_->gradients_final(block, axis, *final);
}

void TrainModel::finish_update() {
  gather_.wait_all(model_.stream());
  store_->wait_all_values(model_.stream());
}

BlockHooks& TrainModel::evaluation_hooks() {
  return weights_ ? static_cast<BlockHooks&>(*weights_) : no_hooks_;
}

template <class Write>
void TrainModel::replace_values(Write write) {
  Stream& stream = model_.stream();
  if (weights_) weights_->make_room(stream);
  write();
  if (config_.optimizer.distributed) gather_.start(stream, *store_);
  if (!weights_) return;
  finish_update();
  weights_->send_all(stream);
}

void TrainModel::begin_step() {
  store_->begin_step(model_.stream());
  buckets_.zero(model_.stream());
  // In place: graphs know where they are.
  for (const auto& [name, total] : totals_.all()) model_.stream().zero(total);
}

int64_t TrainModel::num_graphed(int64_t num_micro) {
  if (graphs_.impl == "none") return 0;
  if (num_eager_steps_ < graphs_.warmup_steps || !memory_->is_settled()) {
    ++num_eager_steps_;
    return 0;
  }
  if (!graphs_micro_batches(graphs_)) {
    model_.part_graphs().use();
    return 0;
  }
  // While the last micro-batch goes back, its finished blocks are reduced over ranks, and sent to
  // the host's part of the optimizer.
  const bool reduces = config_.optimizer.overlap_grad_reduce && model_.groups().mesh().dp() > 1;
  const bool last_is_eager = num_micro > 1 && (reduces || hybrid_ != nullptr);
  return last_is_eager ? num_micro - 1 : num_micro;
}

ParallelModel::Input TrainModel::forward_backward(BatchFeed& feed, int64_t first_sample,
                                                  int64_t step) {
  const int64_t num_micro = config_.num_microbatches(model_.groups().mesh().world());
  const int64_t num_graphs = num_graphed(num_micro);
  if (num_graphs > 0) finish_update();  // a graph does not wait block by block
  const StepContext context{
      totals_,       {static_cast<uint64_t>(config_.run.seed), static_cast<uint32_t>(step), 0},
      first_sample,  true,
      memory_.get(), num_graphs};
  return model_.run(num_micro, feed, hooks_, context,
                    [&](int, int micro) { reducer_.set_last(micro + 1 == num_micro); });
}

void TrainModel::set_activation_memory(const RunConfig& config) {
  CHECK(!weights_ && !config.layer_offload.weights, "weights that move stay where they are");
  graphs_ = config.cuda_graph;
  num_eager_steps_ = 0;
  model_.drop_graphs();
  memory_.reset();  // before another one registers with the device
  memory_ = std::make_unique<ActivationMemory>(config, model_.stream().device(),
                                               model_.groups().coordinates().pp);
}

bool TrainModel::has_limits() const {
  return config_.moe.rank_capacity_factor.has_value() || config_.paged_stash.enabled;
}

TrainModel::Exceeded TrainModel::exceeded() {
  Stream& stream = model_.stream();
  std::vector<double> sums(3);
  const auto flag = [&](double number) { return number > 0 ? 1.0 : 0.0; };
  sums[0] = flag(read_total(stream, totals_, "over_capacity"));
  if (const PagedStash* stash = memory_->paged_stash(); stash != nullptr) {
    sums[1] = flag(read_back_as_double(stream, stash->overflow())[0]);
    sums[2] = flag(read_back_as_double(stream, stash->spilled())[0]);
  }
  sum_over_ranks(sums, model_.groups().world(), stream);
  const auto whole = [](double number) { return static_cast<int64_t>(number); };
  return {whole(sums[0]), whole(sums[1]), whole(sums[2])};
}

void TrainModel::set_limits(bool on) {
  model_.set_capacity_enabled(on);
  if (memory_->paged_stash() != nullptr) memory_->paged_stash()->set_enabled(on);
}

double TrainModel::gradient_norm(double num_tokens) {
  std::vector<double> sums{optimizer_.sum_squares(model_.stream())};
  sum_over_ranks(sums, model_.groups().world(), model_.stream());
  return ferry::gradient_norm(sums[0], num_tokens);
}

double TrainModel::update(int64_t step, double num_tokens, double gradient_norm) {
  OptimizerSettings settings;
  settings.lr = schedule_.at(step);
  settings.weight_decay = config_.optimizer.weight_decay;
  settings.clip_norm = config_.optimizer.clip_norm;
  replace_values(
      [&] { optimizer_.update(model_.stream(), settings, step, num_tokens, gradient_norm); });
  return settings.lr;
}

std::vector<StoredRows> TrainModel::stored_rows() const {
  std::vector<StoredRows> rows;
  for (const Parameter* parameter : updated_) {
    if (parameter->is_copy) continue;
    if (config_.optimizer.distributed) {
      rows.push_back({parameter, 0, matrix_rows(parameter->shape)});
    } else {
      const Group& group = groups_.of(parameter->axis);
      const RowRange own = owned_rows(*parameter, group.rank(), group.size());
      rows.push_back({parameter, own.begin, own.end});
    }
  }
  return rows;
}

LoadReport TrainModel::load(const Checkpoint& checkpoint, bool weights_only) {
  LoadReport report;
  replace_values([&] {
    report = load_state(model_.stream(), checkpoint, updated_, *rule_, *store_, weights_only);
  });
  finish_update();
  return report;
}

}  // namespace ferry
