#include "optim/lr_schedule.h"

#include <cmath>
#include <numbers>

#include "core/check.h"

namespace ferry {

LrKind lr_kind(std::string_view name) {
  if (name == "constant") return LrKind::Constant;
  if (name == "linear") return LrKind::Linear;
  if (name == "cosine") return LrKind::Cosine;
  if (name == "wsd") return LrKind::Wsd;
  fail(ExitCode::Usage, "optimizer.schedule = \"", name,
       "\" is not known: use constant, linear, cosine or wsd");
}

void LrSchedule::check() const {
  // Written so that NaN is refused too.
  if (!(lr >= 0 && std::isfinite(lr))) {
    fail(ExitCode::Usage, "optimizer.lr = ", lr, " must be a finite number of at least 0");
  }
  if (!(min_lr >= 0 && min_lr <= lr)) {
    fail(ExitCode::Usage, "optimizer.min_lr = ", min_lr, " must be in [0, optimizer.lr = ", lr,
         "]: the rate falls from lr to min_lr");
  }
  if (warmup_steps < 0) {
    fail(ExitCode::Usage, "optimizer.warmup_steps = ", warmup_steps, " must be at least 0");
  }
  if (kind != LrKind::Wsd && wsd_decay != 0) {
    fail(ExitCode::Usage, "optimizer.wsd_decay = ", wsd_decay,
         " needs optimizer.schedule = \"wsd\"; set it to 0 or change the schedule");
  }
  if (kind == LrKind::Constant) return;
  if (warmup_steps >= decay_steps) {
    fail(ExitCode::Usage, "optimizer.warmup_steps = ", warmup_steps,
         " must be below optimizer.decay_steps = ", decay_steps,
         ": the decay starts when the warm-up ends");
  }
  if (kind == LrKind::Wsd && !(wsd_decay >= 1 && wsd_decay <= decay_steps - warmup_steps)) {
    fail(ExitCode::Usage, "optimizer.wsd_decay = ", wsd_decay, " must be in [1, ",
         decay_steps - warmup_steps, "], the steps between optimizer.warmup_steps = ", warmup_steps,
         " and optimizer.decay_steps = ", decay_steps);
  }
}

double LrSchedule::at(int64_t step) const {
  CHECK(step >= 1, "steps count from 1, not ", step);
  if (step <= warmup_steps) {
    return lr * static_cast<double>(step) / static_cast<double>(warmup_steps);
  }
  if (kind == LrKind::Constant) return lr;
  if (step > decay_steps) return min_lr;
  const double progress =
      static_cast<double>(step - warmup_steps) / static_cast<double>(decay_steps - warmup_steps);
  const int64_t steps_left = decay_steps - step;
  double share = 1;  // of the way from min_lr up to lr
  if (kind == LrKind::Linear) share = 1 - progress;
  if (kind == LrKind::Cosine) share = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  if (kind == LrKind::Wsd && steps_left < wsd_decay) {
    share = static_cast<double>(steps_left) / static_cast<double>(wsd_decay);
  }
  return min_lr + share * (lr - min_lr);
}

}  // namespace ferry
