#include "app/batch_feed.h"

#include "core/host_copy.h"

namespace ferry {

Batch BatchFeed::next(int64_t step_first_sample) {
  if (!keeps_) return read(step_first_sample);
  if (position_ == kept_.size()) kept_.push_back(read(step_first_sample));
  return kept_[position_++];
}

void BatchFeed::rewind() {
  CHECK(keeps_, "micro-batches that were not kept cannot be given again");
  position_ = 0;
}

Batch BatchFeed::read(int64_t step_first_sample) {
  const Microbatch host = loader_.next();
  Batch batch;
  batch.batch = host.batch;
  batch.seq = host.seq;
  const Shape shape{host.batch * host.seq};
  batch.tokens = from_host(stream_, "batch", host.tokens, shape);
  batch.labels = from_host(stream_, "batch", host.labels, shape);
  batch.loss_mask = from_host(stream_, "batch", host.loss_mask, shape);
  for (const float weight : host.loss_mask) batch.num_loss_tokens += weight != 0;
  batch.first_token = (host.sample_ids.front() - step_first_sample) * host.seq;
  return batch;
}

}  // namespace ferry
