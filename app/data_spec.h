#pragma once

// From [data] of a configuration to what app/data opens.

#include "app/data/token_dataset.h"
#include "app/run_config.h"

namespace ferry {

DataSpec training_data_spec(const RunConfig& config, int64_t ranks);
DataSpec validation_data_spec(const RunConfig& config, int64_t ranks);

}  // namespace ferry
