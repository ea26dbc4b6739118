#pragma once

// The mean loss on held-out data.

#include <utility>

#include "app/data/token_dataset.h"
#include "app/parallel_model.h"
#include "app/run_config.h"

namespace ferry {

/// The dataset of `data.valid` (or of part 1 of `data.split`); null if neither is set. Synthetic
/// data always has one.
std::shared_ptr<const TokenDataset> open_validation_data(const RunConfig& config, int64_t ranks);

struct EvaluationResult {
  double loss = 0;    // mean over tokens, nats
  double tokens = 0;  // over all ranks
};

/// The mean token loss over `num_batches` global batches from the start of the dataset (fewer if it
/// is smaller). Always the same samples, whatever the layout of ranks. `hooks` hear of the blocks.
/// Collective over all ranks.
EvaluationResult evaluate(ParallelModel& model, std::shared_ptr<const TokenDataset> dataset,
                          int64_t num_batches, BlockHooks& hooks);

/// The same, where nobody wants to hear.
inline EvaluationResult evaluate(ParallelModel& model, std::shared_ptr<const TokenDataset> dataset,
                                 int64_t num_batches) {
  BlockHooks nobody;
  return evaluate(model, std::move(dataset), num_batches, nobody);
}

}  // namespace ferry
