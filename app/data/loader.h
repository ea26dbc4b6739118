#pragma once

// Micro-batches of one data-parallel rank, prepared by a thread ahead of their use.

#include "app/data/token_dataset.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ferry {

/// `batch` rows of `seq` tokens, row-major [batch, seq]. labels[b][t] is the token after
/// tokens[b][t]; loss_mask is 1 where it counts and else 0.
struct Microbatch {
  int64_t batch = 0, seq = 0;
  std::vector<int32_t> tokens, labels;
  std::vector<float> loss_mask;
  int64_t first_sample = 0;         // position in the run of the micro-step's first sample, rank 0
  std::vector<int64_t> sample_ids;  // position in the run of each row
};

struct LoaderConfig {
  int64_t micro = 1;   // rows per micro-batch
  int64_t global = 1;  // rows per step over all ranks; a multiple of micro * dp_size
  int64_t dp_rank = 0, dp_size = 1;
  int64_t consumed_samples = 0;  // where to go on, counted over all ranks
  int64_t pad = -1;              // label not trained on; as an input it becomes 0. -1: none
  int64_t eod = -1;              // with eod_mask_loss: input after which nothing is predicted
  bool eod_mask_loss = false;
  int64_t prefetch = 4;                            // micro-batches kept ready
  std::function<void(const Microbatch&)> on_next;  // sees each micro-batch that next() returns
};

/// Micro-step k takes the micro * dp_size samples from consumed_samples + k * micro * dp_size on;
/// rank r owns rows [r * micro, (r + 1) * micro) of them. So the samples of a step do not depend on
/// the number of ranks, and consumed_samples is all the state there is. For one calling thread.
class Loader {
 public:
  /// Throws Error(Usage) when `global` is not a multiple of micro * dp_size.
  Loader(std::shared_ptr<const TokenDataset> dataset, const LoaderConfig& config);
  /// Stops the thread, whatever it does.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next micro-batch; waits for it. Errors of the thread (a bad token id, the end of the data)
  /// are thrown here, in place of the micro-batch that has them, and by every call after.
  Microbatch next();
  /// Samples of all ranks in the micro-batches that next() has returned, and before them.
  int64_t consumed_samples() const { return consumed_samples_; }
  int64_t microbatches_per_step() const {
    return config_.global / (config_.micro * config_.dp_size);
  }

 private:
  void prefetch();
  Microbatch make(int64_t first_sample) const;

  std::shared_ptr<const TokenDataset> dataset_;
  LoaderConfig config_;
  int64_t consumed_samples_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Microbatch> ready_;
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread thread_;  // last: starts when all else is there
};

}  // namespace ferry
