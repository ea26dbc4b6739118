#pragma once

// What [cuda_graph] means for the model.

#include <cstdint>
#include <set>

#include "app/run_config.h"
#include "core/tape.h"

namespace ferry {

/// Whole micro-batches are graphs.
bool graphs_micro_batches(const CudaGraphTable& table);
/// The parts of the model that are graphs of their own (impl "local"): what cuda_graph.modules
/// names, or whole layers.
std::set<Label> graphed_parts(const CudaGraphTable& table);
/// Bytes of the inputs and results of these graphs on a rank of stage `pp`: they stay where they
/// are, once for each micro-batch that may be under way.
int64_t graph_tensor_bytes(const RunConfig& config, int64_t ranks, int pp);

}  // namespace ferry
