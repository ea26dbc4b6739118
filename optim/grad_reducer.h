#pragma once

// Sums gradients over the data-parallel ranks. With overlap, on the last micro-batch of a step each
// block's buckets go out on a stream of their own as soon as the block is done; without, all of
// them after backward. The results are the same bits.

#include <memory>
#include <vector>

#include "core/comm/group.h"
#include "core/module.h"
#include "optim/buckets.h"

namespace ferry {

class GradReducer final : public BlockHooks {
 public:
  /// `dense` reduces ReduceAxis::Dense buckets, `expert` the others; all must outlive this.
  GradReducer(const GradientBuckets& buckets, Group& dense, Group& expert, Device& device,
              bool overlap);

  /// Call before the backward of the last micro-batch of a step.
  void begin_last_micro_batch() { last_ = true; }
  void after_backward(Pass& pass, int block_idx) override;
  /// Makes `stream` wait for all reductions; the next micro-batch is again not the last.
  void finish(Stream& stream);

 private:
  /// Enqueues the block's reductions behind what `compute` has so far.
  void reduce(Stream& compute, int block_idx);

  const GradientBuckets& buckets_;
  Group& dense_;
  Group& expert_;
  std::unique_ptr<Stream> stream_;
  bool overlap_;
  bool last_ = false;
};

}  // namespace ferry
