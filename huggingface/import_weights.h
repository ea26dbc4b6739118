#pragma once

// Makes a checkpoint of step 0 from safetensors: FP32 masters, moments of zeros.

#include <string>
#include <vector>

#include "checkpoint/writer.h"
#include "huggingface/tensor_links.h"
#include "huggingface/weight_files.h"

namespace ferry {

/// Error(ExitCode::Storage) with a table of what is missing, unmatched, or of another shape.
void require_weights_of(const WeightFiles& files, const std::vector<TensorLink>& links);

/// require_weights_of, then saves the weights of `links`, with a tensor "optimizer/MOMENT/..." of
/// zeros beside each for every name in `moments`. `request` says where; its slices are ignored. The
/// float32 values are in a file in request.run_dir that has no name, so that memory is bounded by
/// the page cache.
SaveReport import_weights(const WeightFiles& files, const std::vector<TensorLink>& links,
                          const std::vector<std::string>& moments, SaveRequest request);

}  // namespace ferry
