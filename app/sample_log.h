#pragma once

// debug.log_samples: which samples a run trained on, in order, so that runs that were stopped,
// killed or moved to other ranks can be compared with one that was not.

#include <functional>

#include "app/data/loader.h"
#include "app/run_config.h"
#include "core/comm/mesh.h"

namespace ferry {

/// What a Loader calls with each micro-batch that it hands out: appends a line to
/// RUN/log/samples-DDDD.jsonl, D the data-parallel coordinate,
///     {"samples": [16, 17], "tokens": ["0f3c...", "a711..."]}
/// with the positions of the samples in the run and digests of their tokens. Each start begins with
/// {"from": N}: what lines above it say of samples from N on did not become part of the run. Null
/// without debug.log_samples, and on ranks that have the samples of another one. The folder must
/// exist; Error(ExitCode::Storage) if a write fails.
std::function<void(const Microbatch&)> sample_log(const RunConfig& config, const MeshGroups& groups,
                                                  int64_t consumed_samples);

}  // namespace ferry
