#pragma once

// The tables of a configuration that say how weights are updated: [optimizer] and
// [optimizer.offload]. The members have the names of the keys.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/fields.h"

namespace ferry {

/// [optimizer.offload]: HybridDeviceOptimizer, which keeps a part of the optimizer on the CPU.
struct OptimizerOffloadTable {
  bool enabled = false;
  std::optional<double> fraction = 1.0;
  std::string auto_goal = "memory";
  std::optional<std::string> take;
  bool overlap_d2h_h2d = false;
  int64_t threads = 0;
  bool pin_grads = true;
  bool pin_params = true;
  std::string dump_param_groups;

  /// Whether the host's part are the last parameters of the model.
  bool takes_last() const { return take ? *take == "last" : !fraction.has_value(); }

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(Field{.key = "enabled", .doc = "switch"}, &OptimizerOffloadTable::enabled);
    visit(Field{.key = "fraction",
                .doc = "part of the parameters that the CPU updates; auto: measured in the first "
                       "steps, see auto_goal",
                .range = closed(0, 1),
                .word = "auto"},
          &OptimizerOffloadTable::fraction);
    visit(Field{.key = "auto_goal",
                .doc = "what fraction = auto looks for; memory: the smallest fraction whose device "
                       "part fits, hidden: the largest one whose CPU work hides behind the first "
                       "forward pass",
                .allowed = {"memory", "hidden"}},
          &OptimizerOffloadTable::auto_goal);
    visit(Field{.key = "take",
                .doc = "which parameters of the model the CPU updates; unset: first, or last with "
                       "fraction = auto, because the next forward pass needs those last",
                .allowed = {"first", "last"}},
          &OptimizerOffloadTable::take);
    visit(Field{.key = "overlap_d2h_h2d",
                .doc = "copy gradients, update and copy weights at the same time"},
          &OptimizerOffloadTable::overlap_d2h_h2d);
    visit(Field{.key = "threads",
                .doc = "of the update on the CPU",
                .range = closed(0, 1024),
                .zero = "the CPUs that the rank may use, shared by the ranks of its host"},
          &OptimizerOffloadTable::threads);
    visit(Field{.key = "pin_grads", .doc = "page-locked host memory for copies of gradients"},
          &OptimizerOffloadTable::pin_grads);
    visit(Field{.key = "pin_params", .doc = "page-locked host memory for copies of weights"},
          &OptimizerOffloadTable::pin_params);
    visit(Field{.key = "dump_param_groups",
                .doc = "JSON file to write with the place of every parameter; empty: none"},
          &OptimizerOffloadTable::dump_param_groups);
  }
};

/// [optimizer]: the update rule and the schedule of the learning rate.
struct OptimizerTable {
  std::string name = "adamw";
  double lr = 0.0;
  double min_lr = 0.0;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double momentum = 0.9;
  double weight_decay = 0.01;
  double clip_norm = 1.0;
  std::string schedule = "cosine";
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;
  int64_t wsd_decay = 0;
  bool distributed = true;
  bool precision_aware = false;
  std::string exp_avg_dtype = "fp32";
  std::string exp_avg_sq_dtype = "fp32";
  bool overlap_grad_reduce = true;
  bool overlap_param_gather = false;
  OptimizerOffloadTable offload;

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(Field{.key = "name", .doc = "update rule", .allowed = {"adamw", "sgd"}},
          &OptimizerTable::name);
    visit(
        Field{.key = "lr", .doc = "highest learning rate", .range = at_least(0), .required = true},
        &OptimizerTable::lr);
    visit(Field{.key = "min_lr", .doc = "lowest learning rate of the decay", .range = at_least(0)},
          &OptimizerTable::min_lr);
    visit(Field{.key = "betas",
                .doc = "adamw: decay of the first and second moment, per step",
                .range = half_open(0, 1)},
          &OptimizerTable::betas);
    visit(Field{.key = "eps",
                .doc = "adamw: added to the root of the second moment",
                .range = above(0)},
          &OptimizerTable::eps);
    visit(Field{.key = "momentum",
                .doc = "sgd: decay of the sum of gradients, per step",
                .range = half_open(0, 1)},
          &OptimizerTable::momentum);
    visit(Field{.key = "weight_decay",
                .doc = "adamw: decoupled, sgd: added to the gradient; not on norms and biases",
                .range = at_least(0)},
          &OptimizerTable::weight_decay);
    visit(Field{.key = "clip_norm",
                .doc = "gradients are scaled down to this global norm",
                .range = at_least(0),
                .zero = "off"},
          &OptimizerTable::clip_norm);
    visit(Field{.key = "schedule",
                .doc = "course of the learning rate after the warm-up",
                .allowed = {"cosine", "constant", "linear", "wsd"}},
          &OptimizerTable::schedule);
    visit(Field{.key = "warmup_steps",
                .doc = "steps of the linear rise from 0 to lr",
                .range = closed(0, 1e9)},
          &OptimizerTable::warmup_steps);
    visit(Field{.key = "decay_steps",
                .doc = "step at which the decay to min_lr ends; schedule constant ignores it",
                .range = closed(0, 1e9),
                .zero = "run.steps, or the step after the warm-up if that is later"},
          &OptimizerTable::decay_steps);
    visit(Field{.key = "wsd_decay",
                .doc = "steps of the final linear decay of schedule wsd",
                .range = closed(0, 1e9)},
          &OptimizerTable::wsd_decay);
    visit(Field{.key = "distributed",
                .doc = "share the optimizer state over data-parallel ranks (ZeRO-1)"},
          &OptimizerTable::distributed);
    visit(Field{.key = "precision_aware",
                .doc = "moments on the device of the types below; needs adamw and distributed"},
          &OptimizerTable::precision_aware);
    visit(Field{.key = "exp_avg_dtype",
                .doc = "type of the first moment on the device; on the host it is always fp32",
                .allowed = {"fp32", "bf16"}},
          &OptimizerTable::exp_avg_dtype);
    visit(Field{.key = "exp_avg_sq_dtype",
                .doc = "type of the second moment on the device; on the host it is always fp32",
                .allowed = {"fp32", "bf16"}},
          &OptimizerTable::exp_avg_sq_dtype);
    visit(Field{.key = "overlap_grad_reduce", .doc = "reduce gradients during backward"},
          &OptimizerTable::overlap_grad_reduce);
    visit(Field{.key = "overlap_param_gather", .doc = "gather updated weights during forward"},
          &OptimizerTable::overlap_param_gather);
    visit(Table{.key = "offload",
                .doc = "HybridDeviceOptimizer: a part of the optimizer on the CPU."},
          &OptimizerTable::offload);
  }
};

}  // namespace ferry
