#include "optim/grad_reducer.h"

#include <algorithm>

namespace ferry {

GradReducer::GradReducer(const GradientBuckets& buckets, Group& dense, Group& expert,
                         Device& device, bool overlap)
    : buckets_(buckets),
      dense_(dense),
      expert_(expert),
      stream_(device.make_stream("gradient reduction")),
      overlap_(overlap) {}

void GradReducer::after_backward(Pass& pass, int block_idx) {
  if (last_ && overlap_) reduce(pass.stream, block_idx);
}

void GradReducer::finish(Stream& stream) {
  if (last_ && !overlap_) {
    int num_blocks = 0;
    for (const Bucket& bucket : buckets_.buckets())
      num_blocks = std::max(num_blocks, bucket.block + 1);
    for (int block = num_blocks - 1; block >= 0; --block) reduce(stream, block);
  }
  last_ = false;
  stream.wait(stream_->record());
}

void GradReducer::reduce(Stream& compute, int block_idx) {
  bool waited = false;
  for (const Bucket& bucket : buckets_.buckets()) {
    Group& group = bucket.axis == ReduceAxis::Dense ? dense_ : expert_;
    if (bucket.block != block_idx || group.size() == 1) continue;
    if (!waited) stream_->wait(compute.record());
    waited = true;
    group.all_reduce(*stream_, bucket.gradients, ReduceOp::Sum);
    stream_->hold(bucket.gradients);
  }
}

}  // namespace ferry
