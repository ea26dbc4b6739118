#include "app/train_model.h"

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

}  // namespace

TrainModel::TrainModel(const RunConfig& config, Stream& stream, const MeshGroups& groups)
    : config_(config),
      stream_(stream),
      gpt_(config.gpt(), config.debug.force_routing, static_cast<uint64_t>(config.run.seed)),
      schedule_(lr_schedule(config.optimizer)) {
  gpt_.initialise(stream_, static_cast<uint64_t>(config.run.seed));
  gpt_.visit([&](Parameter& parameter) { parameters_.push_back(&parameter); });
  buckets_ = std::make_unique<GradientBuckets>(stream_, gpt_.parameters_by_block());
  reducer_ = std::make_unique<GradReducer>(*buckets_, groups.along("dp"), groups.along("edp"),
                                           stream_.device(), config.optimizer.overlap_grad_reduce);
  store_ = std::make_unique<DeviceStateStore>(stream_, parameters_);
  optimizer_ = std::make_unique<Optimizer>(stream_, parameters_, *store_);
}

void TrainModel::begin_step() {
  buckets_->zero(stream_);
  totals_.clear();
}

void TrainModel::micro_batch(const Batch& batch, int64_t step, bool last) {
  Tape tape;
  const RandomKey key{static_cast<uint64_t>(config_.run.seed), static_cast<uint32_t>(step), 0};
  Pass pass(stream_, tape, batch, totals_, key, true);
  gpt_.forward(pass, *reducer_);
  if (last) reducer_->begin_last_micro_batch();
  gpt_.backward(pass, *reducer_);
  CHECK(tape.empty(), tape.num_records(), " records were never loaded");
}

double TrainModel::update(int64_t step, double num_tokens, double gradient_norm) {
  OptimizerSettings settings;
  settings.lr = schedule_.at(step);
  settings.beta1 = config_.optimizer.betas[0];
  settings.beta2 = config_.optimizer.betas[1];
  settings.eps = config_.optimizer.eps;
  settings.weight_decay = config_.optimizer.weight_decay;
  settings.clip_norm = config_.optimizer.clip_norm;
  optimizer_->update(stream_, settings, step, num_tokens, gradient_norm);
  return settings.lr;
}

}  // namespace ferry
