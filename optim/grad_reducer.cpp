#include "optim/grad_reducer.h"

namespace ferry {

GradReducer::GradReducer(const GradientBuckets& buckets, const ReduceGroups& groups, Device& device,
                         bool overlap)
    : stream_(device.make_stream("gradient reduction")),
      groups_(groups),
      distributed_(buckets.distributed()),
      overlap_(overlap) {
  for (const Bucket& bucket : buckets.buckets()) {
    Group& group = groups.of(bucket.axis);
    if (group.size() > 1) reductions_.push_back({&bucket, &group, false});
  }
}

void GradReducer::after_backward(Pass& pass, int block_idx) {
  if (!last_ || !overlap_) return;
  for (Reduction& reduction : reductions_) {
    const Bucket& bucket = *reduction.bucket;
    if (bucket.block != block_idx || bucket.axis == ReduceAxis::Tied) continue;
    CHECK(!reduction.done, "block ", block_idx, " has two last backwards in one step");
    reduce(pass.stream, reduction);
  }
}

std::optional<Event> GradReducer::final_event(Stream& compute, int block, ReduceAxis axis) const {
  if (!last_) return std::nullopt;
  if (groups_.of(axis).size() == 1) return compute.record();
  for (const Reduction& reduction : reductions_)
    if (reduction.bucket->block == block && reduction.bucket->axis == axis && reduction.done)
      return reduction.reduced;
  return std::nullopt;
}

void GradReducer::finish(Stream& stream) {
  for (const bool tied : {false, true}) {
    for (auto reduction = reductions_.rbegin(); reduction != reductions_.rend(); ++reduction) {
      if (reduction->done || (reduction->bucket->axis == ReduceAxis::Tied) != tied) continue;
      reduce(stream, *reduction);
    }
  }
  for (Reduction& reduction : reductions_) reduction.done = false;
  stream.wait(stream_->record());
}

void GradReducer::reduce(Stream& compute, Reduction& reduction) {
  const Bucket& bucket = *reduction.bucket;
  Group& group = *reduction.group;
  reduction.done = true;
  stream_->wait(compute.record());
  if (distributed_) {
    for (const Tensor& all : bucket.padded) {
      const int64_t rows = all.dim(0) / group.size();
      group.reduce_scatter(*stream_, all.rows(group.rank() * rows, (group.rank() + 1) * rows), all);
    }
  } else {
    group.all_reduce(*stream_, bucket.gradients, ReduceOp::Sum);
  }
  stream_->hold(bucket.gradients);
  reduction.reduced = stream_->record();
}

}  // namespace ferry
