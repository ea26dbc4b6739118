#include "optim/grad_reducer.h"

namespace ferry {

GradReducer::GradReducer(const GradientBuckets& buckets, Group& dense, Group& expert,
                         Device& device)
    : buckets_(buckets),
      dense_(dense),
      expert_(expert),
      stream_(device.make_stream("gradient reduction")) {}

void GradReducer::after_backward(Pass& pass, int block_idx) {
  if (!last_) return;
  bool waited = false;
  for (const Bucket& bucket : buckets_.buckets()) {
    Group& group = bucket.axis == ReduceAxis::Dense ? dense_ : expert_;
    if (bucket.block != block_idx || group.size() == 1) continue;
    if (!waited) stream_->wait(pass.stream.record());
    waited = true;
    group.all_reduce(*stream_, bucket.gradients, ReduceOp::Sum);
    stream_->hold(bucket.gradients);
  }
}

void GradReducer::finish(Stream& stream) {
  last_ = false;
  stream.wait(stream_->record());
}

}  // namespace ferry
