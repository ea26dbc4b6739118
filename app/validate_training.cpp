// Rules between the keys of [run], [batch], [optimizer], [checkpoint] and [debug].

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "app/nearest.h"
#include "app/validate.h"

namespace ferry {

namespace {

void validate_batch(const RunConfig& config, int64_t ranks, Violations& violations) {
  const int64_t dp = config.data_parallel(ranks);
  const int64_t samples = config.batch.micro * dp;
  const int64_t global = config.batch.global;
  if (samples > 0 && global % samples != 0) {
    violations.add({"batch.global", "batch.micro"},
                   "batch.global is not a multiple of the samples of one pass",
                   fmt::format("{} samples mod (micro {} * {} data-parallel ranks = {}) = {}",
                               global, config.batch.micro, dp, samples, global % samples),
                   "batch.global = " + nearest_multiples(samples, global));
  }
  const std::vector<int64_t>& ramp = config.batch.ramp;
  if (ramp.empty()) return;
  if (ramp.size() != 3) {
    violations.add({"batch.ramp"}, "batch.ramp needs three numbers",
                   fmt::format("it has {}", ramp.size()),
                   "[first size, increment, samples of the ramp]");
  } else if (ramp[0] < 1 || ramp[1] < 1 || ramp[0] > global || (global - ramp[0]) % ramp[1] != 0 ||
             (samples > 0 && (ramp[0] % samples != 0 || ramp[1] % samples != 0))) {
    violations.add(
        {"batch.ramp", "batch.global", "batch.micro"}, "batch.ramp does not lead to batch.global",
        fmt::format("from {} in steps of {} to {}, each a multiple of {}", ramp[0], ramp[1], global,
                    samples),
        "a first size and an increment that are multiples of micro * data-parallel ranks");
  }
}

void validate_schedule(const RunConfig& config, Violations& violations) {
  const OptimizerTable& optimizer = config.optimizer;
  if (optimizer.min_lr > optimizer.lr) {
    violations.add({"optimizer.min_lr", "optimizer.lr"}, "optimizer.min_lr is above optimizer.lr",
                   fmt::format("the rate falls from {} to {}", optimizer.lr, optimizer.min_lr),
                   fmt::format("at most {}", optimizer.lr));
  }
  if (optimizer.schedule != "constant" && optimizer.decay_steps > 0 &&
      optimizer.warmup_steps >= optimizer.decay_steps) {
    violations.add({"optimizer.warmup_steps", "optimizer.decay_steps"},
                   "the warm-up is not shorter than the schedule",
                   fmt::format("{} steps of warm-up, and the decay ends at step {}",
                               optimizer.warmup_steps, optimizer.decay_steps),
                   fmt::format("optimizer.warmup_steps below {}", optimizer.decay_steps));
  }
  const bool is_wsd = optimizer.schedule == "wsd";
  if (is_wsd != (optimizer.wsd_decay > 0)) {
    violations.add(
        {"optimizer.wsd_decay", "optimizer.schedule"},
        is_wsd ? "schedule wsd needs optimizer.wsd_decay"
               : "optimizer.wsd_decay without schedule wsd",
        "it is the length of the final decay of that schedule",
        is_wsd ? "optimizer.wsd_decay = the number of steps" : "optimizer.schedule = wsd");
  } else if (is_wsd && optimizer.wsd_decay + optimizer.warmup_steps > optimizer.decay_steps) {
    violations.add(
        {"optimizer.wsd_decay", "optimizer.warmup_steps", "optimizer.decay_steps"},
        "the final decay begins before the warm-up ends",
        fmt::format("{} + {} steps do not fit into {}", optimizer.warmup_steps, optimizer.wsd_decay,
                    optimizer.decay_steps),
        fmt::format("optimizer.wsd_decay = {}", optimizer.decay_steps - optimizer.warmup_steps));
  }
}

void validate_moment_types(const RunConfig& config, Violations& violations) {
  const OptimizerTable& optimizer = config.optimizer;
  const std::pair<const char*, const std::string&> keys[] = {
      {"optimizer.exp_avg_dtype", optimizer.exp_avg_dtype},
      {"optimizer.exp_avg_sq_dtype", optimizer.exp_avg_sq_dtype}};
  for (const auto& [key, dtype] : keys) {
    if (dtype == "fp32") continue;
    if (!optimizer.precision_aware)
      violations.add({key, "optimizer.precision_aware"},
                     fmt::format("{} without optimizer.precision_aware", key),
                     "moments have less than full precision only where that is asked for by name",
                     fmt::format("{} = fp32, or optimizer.precision_aware = true", key));
    if (config.model.precision == "fp64")
      violations.add({key, "model.precision"}, "moments of an fp64 model in bf16",
                     "all state of an fp64 model is fp64", fmt::format("{} = fp32", key));
  }
}

void validate_optimizer(const RunConfig& config, Violations& violations) {
  const OptimizerTable& optimizer = config.optimizer;
  if (optimizer.betas.size() != 2) {
    violations.add({"optimizer.betas"}, "optimizer.betas needs two numbers",
                   fmt::format("it has {}", optimizer.betas.size()), "[0.9, 0.95]");
  }
  if (optimizer.overlap_param_gather && !(optimizer.distributed && optimizer.overlap_grad_reduce)) {
    violations.add(
        {"optimizer.overlap_param_gather", "optimizer.distributed",
         "optimizer.overlap_grad_reduce"},
        "optimizer.overlap_param_gather alone",
        "only a distributed optimizer gathers weights, in the order in which it reduced gradients",
        "optimizer.distributed = true and optimizer.overlap_grad_reduce = true");
  }
  if (optimizer.precision_aware && (optimizer.name != "adamw" || !optimizer.distributed)) {
    violations.add({"optimizer.precision_aware", "optimizer.name", "optimizer.distributed"},
                   "optimizer.precision_aware alone", "it is a form of the distributed AdamW",
                   "optimizer.name = adamw and optimizer.distributed = true");
  }
  validate_moment_types(config, violations);
}

// A misspelt permission would be found only when it is missed.
void validate_allowed_changes(const RunConfig& config, Violations& violations) {
  std::vector<std::string> names = {"all"};
  visit_values(
      config, [&](const std::string& table, const Table&) { names.push_back(table); },
      [&](const std::string& key, const Field&, const auto&) { names.push_back(key); });
  for (const std::string& name : config.checkpoint.allow_changes) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    violations.add({"checkpoint.allow_changes"},
                   fmt::format("checkpoint.allow_changes names {}", name),
                   "it is neither a key nor a table",
                   nearest_name(name, names).value_or("optimizer.lr, optimizer or all"));
  }
}

void validate_debug(const RunConfig& config, int64_t ranks, Violations& violations) {
  const ThrowAtTable& throw_at = config.debug.throw_at;
  if (throw_at.rank.has_value() != throw_at.step.has_value()) {
    violations.add({"debug.throw_at.rank", "debug.throw_at.step"},
                   "debug.throw_at needs a rank and a step", "one of them is not set",
                   "debug.throw_at = {rank = 0, step = 1}");
  }
  if (throw_at.rank && *throw_at.rank >= ranks) {
    violations.add({"debug.throw_at.rank"}, "debug.throw_at.rank is not a rank of this run",
                   fmt::format("there are {} ranks, from 0", ranks),
                   fmt::format("at most {}", ranks - 1));
  }
}

}  // namespace

void validate_training(const RunConfig& config, int64_t ranks, Violations& violations) {
  validate_batch(config, ranks, violations);
  validate_schedule(config, violations);
  validate_optimizer(config, violations);
  validate_debug(config, ranks, violations);
  if (config.run.stop_at_step && *config.run.stop_at_step > config.run.steps) {
    violations.add({"run.stop_at_step", "run.steps"},
                   "run.stop_at_step is after the end of the run",
                   fmt::format("the run has {} steps", config.run.steps),
                   fmt::format("at most {}", config.run.steps));
  }
  validate_allowed_changes(config, violations);
  if (config.checkpoint.keep == 1) {
    violations.add({"checkpoint.keep"}, "checkpoint.keep is 1",
                   "if the only checkpoint turned out to be damaged, nothing would be left",
                   "2 or more, or 0 to keep all");
  }
  if (config.checkpoint.resume.empty()) {
    violations.add({"checkpoint.resume"}, "checkpoint.resume is empty",
                   "it names what to resume from", "auto, none or a path");
  }
  if (config.checkpoint.weights_only && config.checkpoint.resume == "none") {
    violations.add({"checkpoint.weights_only", "checkpoint.resume"}, "weights of no checkpoint",
                   "checkpoint.resume is none, so there is nothing to take weights from",
                   "checkpoint.resume = the path of a checkpoint");
  }
}

}  // namespace ferry
