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

}  // namespace ferry
