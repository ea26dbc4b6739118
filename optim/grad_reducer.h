#pragma once

// Sums gradients over the ranks that hold copies of their parameters. With overlap, in the last
// backward of each chunk a block's buckets go out on a stream of their own as soon as the block is
// done; without, all of them after backward. The results are the same bits.
//
// Buckets of tied parameters always go out at the end: their two stages come to them at different
// times, and a collective among others would make one stage wait for the other.
//
// With buckets of the distributed optimizer, only the rows that this rank owns (optim/shards.h)
// hold the sum afterwards; the other rows are undefined.

#include <memory>
#include <optional>
#include <vector>

#include "core/module.h"
#include "optim/buckets.h"

namespace ferry {

class GradReducer final : public BlockHooks {
 public:
  /// `buckets`, and the groups, which must be those the buckets were made with, outlive this.
  GradReducer(const GradientBuckets& buckets, const ReduceGroups& groups, Device& device,
              bool overlap);

  /// Call before the backward of each chunk: is it the chunk's last of this step?
  void set_last(bool last) { last_ = last; }
  void after_backward(Pass& pass, int block_idx) override;
  /// After after_backward of that block: the event at which its gradients of this axis have their
  /// final values, of what `compute` and the reductions were given so far; none if that will not be
  /// before finish().
  std::optional<Event> final_event(Stream& compute, int block, ReduceAxis axis) const;
  /// After the last backward of the step, on the stream of its passes: reduces what was not reduced
  /// in this step, then makes `stream` wait for all reductions.
  void finish(Stream& stream);

 private:
  struct Reduction {
    const Bucket* bucket;
    Group* group;
    bool done;  // enqueued in this step
    Event reduced = {};
  };
  /// Enqueues it behind what `compute` has so far.
  void reduce(Stream& compute, Reduction& reduction);

  std::unique_ptr<Stream> stream_;
  ReduceGroups groups_;
  std::vector<Reduction> reductions_;  // where the group has more than one rank
  bool distributed_;
  bool overlap_;
  bool last_ = false;
};

}  // namespace ferry
