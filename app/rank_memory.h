#pragma once

// The memory that a rank of each pipeline stage needs, estimated from the configuration alone.

#include <vector>

#include "app/activation_forecast.h"
#include "app/model/cost_model.h"
#include "app/run_config.h"

namespace ferry {

/// Of the first rank of stage `pp`, with `ranks` ranks in all and these activations.
MemoryEstimate stage_memory(const RunConfig& config, int64_t ranks, int pp,
                            const ActivationForecast& activations);
/// The same with activations as forecast_activations() has them at usual rates.
MemoryEstimate stage_memory(const RunConfig& config, int64_t ranks, int pp);
/// Of all stages.
std::vector<MemoryEstimate> stage_memories(const RunConfig& config, int64_t ranks);

/// The smallest part of the optimizer on the host, in hundredths, with which every stage leaves the
/// device_reserve() of a device of `device_bytes` free; 1 if none does. `activations`: of each
/// stage.
double fraction_that_fits(const RunConfig& config, int64_t ranks,
                          const std::vector<ActivationForecast>& activations, int64_t device_bytes);

/// The configuration with optimizer.offload.fraction = "auto" decided.
RunConfig with_fraction(RunConfig config, double fraction);

}  // namespace ferry
