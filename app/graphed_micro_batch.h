#pragma once

// Forward and backward of a micro-batch as one graph (cuda_graph.impl = "full_iteration"): recorded
// for the first micro-batch that asks, replayed for it and all later ones. The kernels and their
// order are those of a pass that is not recorded, so losses and gradients are the same bits.
//
// For a model that is whole on this rank. What changes from one micro-batch to the next comes in
// memory: its tokens are copied to where the graph reads them. What the host computes from a
// micro-batch is the number of its labels that count; a micro-batch with another number than the
// recorded one is not replayed. There are no block hooks inside: weights must be ready before, and
// what depends on gradients comes after. Copies of saved tensors to the host and back are inside.

#include <memory>

#include "app/micro_batch_work.h"
#include "core/graph.h"

namespace ferry {

class GraphedMicroBatch {
 public:
  /// `model` must outlive this.
  explicit GraphedMicroBatch(Gpt& model) : model_(model) {}

  /// Enqueues forward and backward of `batch`, which is `micro` of its step; false, and nothing is
  /// enqueued, if the graph is not of such micro-batches. The totals, the memory and the gradients
  /// of the first call must be those of all later ones, and stay where they are.
  bool run(Stream& stream, const Batch& batch, int micro, const StepContext& context);

  /// Null before the first run().
  const Graph* graph() const { return graph_.get(); }
  /// Micro-batches that were run so far.
  int64_t num_launches() const { return num_launches_; }

 private:
  void record(Stream& stream, const Batch& batch, PassId pass, const StepContext& context);
  bool fits(const Batch& batch) const;

  Gpt& model_;
  std::shared_ptr<Batch> batch_;  // what the graph reads
  std::unique_ptr<Graph> graph_;
  int64_t num_launches_ = 0;
};

}  // namespace ferry
