#pragma once

// From [data] of a configuration to what app/data opens.

#include "app/data/loader.h"
#include "app/data/token_dataset.h"
#include "app/run_config.h"
#include "core/comm/mesh.h"

namespace ferry {

DataSpec training_data_spec(const RunConfig& config, int64_t ranks);
DataSpec validation_data_spec(const RunConfig& config, int64_t ranks);

/// The share of each global batch that this rank reads, from the first sample on.
LoaderConfig loader_config(const RunConfig& config, const MeshGroups& groups);

}  // namespace ferry
