#pragma once

// Micro-batches on the device: takes them from the loader's thread, stages them in (pinned) host
// memory and enqueues their copies. Never waits for the device.

#include "app/data/loader.h"
#include "core/pass.h"

namespace ferry {

class BatchFeed {
 public:
  BatchFeed(Stream& stream, Loader& loader) : stream_(stream), loader_(loader) {}

  /// `step_first_sample`: position in the run of the first sample of this step.
  Batch next(int64_t step_first_sample);

 private:
  Stream& stream_;
  Loader& loader_;
};

}  // namespace ferry
