#pragma once

// Training steps with a clock: what ferry bench step and ferry bench offload measure.

#include <functional>
#include <vector>

#include "app/backend.h"
#include "app/data/loader.h"
#include "app/train_model.h"

namespace ferry {

/// Of each step, in seconds.
struct StepTimes {
  std::vector<double> step;
  std::vector<double> enqueue;       // until the host had enqueued forward and backward
  std::vector<double> backward;      // until they and the reduction of gradients were done
  std::vector<double> reduction;     // of it, after the last pass
  std::vector<double> optimizer;     // the rest
  std::vector<UpdateTimes> updates;  // the host's part of the update before; empty if it has none
  double loss = 0;                   // of the last step, per token
};

/// The configuration's training data, as much as `num_steps` steps need.
Loader step_loader(const RunConfig& config, const MeshGroups& groups, int64_t num_steps);

/// Called after each step with the seconds of the step and, of it, of the optimizer.
using AfterStep = std::function<void(double, double)>;

/// Trains `warmup` + `steps` steps from number `first_step` on and times the last `steps`. Stops
/// with ExitCode::Numerical if they are not finite. Collective.
StepTimes measure_steps(const RunConfig& config, const Backend& backend, TrainModel& model,
                        Loader& loader, int64_t first_step, int64_t warmup, int64_t steps,
                        const AfterStep& after_step = {});

}  // namespace ferry
