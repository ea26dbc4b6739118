#pragma once

// The learning rate of each step: a linear warm-up from 0, then a decay to min_lr. The shapes and
// their corner cases are those of Megatron-LM, so that runs can be compared step by step.

#include <cstdint>
#include <string_view>

namespace ferry {

enum class LrKind { Constant, Linear, Cosine, Wsd };

/// "constant", "linear", "cosine" or "wsd". Error(ExitCode::Usage) for any other name.
LrKind lr_kind(std::string_view name);

struct LrSchedule {
  LrKind kind = LrKind::Cosine;
  double lr = 0;             // at the end of the warm-up
  double min_lr = 0;         // from decay_steps on; constant ignores it
  int64_t warmup_steps = 0;  // step s <= warmup_steps has lr * s / warmup_steps
  int64_t decay_steps = 0;   // the step at which the decay ends; constant ignores it
  int64_t wsd_decay = 0;     // wsd: lr is constant until decay_steps - wsd_decay, then linear

  /// Error(ExitCode::Usage) naming the optimizer settings that do not fit together. Call it once;
  /// at() relies on it.
  void check() const;
  /// The rate of step `step`, which counts from 1.
  double at(int64_t step) const;
};

}  // namespace ferry
