#pragma once

// Micro-batches on the device: takes them from the loader's thread, stages them in (pinned) host
// memory and enqueues their copies. Never waits for the device.

#include <vector>

#include "app/data/loader.h"
#include "core/pass.h"

namespace ferry {

class BatchFeed {
 public:
  /// `keeps`: micro-batches are kept, so that rewind() can give them again.
  BatchFeed(Stream& stream, Loader& loader, bool keeps = false)
      : stream_(stream), loader_(loader), keeps_(keeps) {}

  /// `step_first_sample`: position in the run of the first sample of this step.
  Batch next(int64_t step_first_sample);
  /// Begins again with the first micro-batch that this feed gave.
  void rewind();

 private:
  Batch read(int64_t step_first_sample);

  Stream& stream_;
  Loader& loader_;
  bool keeps_;
  std::vector<Batch> kept_;
  size_t position_ = 0;  // in kept_
};

}  // namespace ferry
