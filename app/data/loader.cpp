#include "app/data/loader.h"

#include "core/check.h"

#include <utility>

namespace ferry {
namespace {

LoaderConfig checked(const LoaderConfig& config) {
  CHECK(config.dp_size >= 1 && config.dp_rank >= 0 && config.dp_rank < config.dp_size);
  CHECK(config.consumed_samples >= 0 && config.prefetch >= 1);
  if (config.micro < 1 || config.global < 1 ||
      config.global % (config.micro * config.dp_size) != 0) {
    fail(ExitCode::Usage, "batch.global = ", config.global,
         " must be a positive multiple of batch.micro = ", config.micro, " times the ",
         config.dp_size, " data-parallel ranks");
  }
  return config;
}

}  // namespace

Loader::Loader(std::shared_ptr<const TokenDataset> dataset, const LoaderConfig& config)
    : dataset_(std::move(dataset)),
      config_(checked(config)),
      consumed_samples_(config.consumed_samples),
      thread_([this] { prefetch(); }) {}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Microbatch Loader::next() {
  Microbatch microbatch;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ready_.empty() || error_; });
    if (ready_.empty()) std::rethrow_exception(error_);
    microbatch = std::move(ready_.front());
    ready_.pop_front();
  }
  changed_.notify_all();
  consumed_samples_ += config_.micro * config_.dp_size;
  if (config_.on_next) config_.on_next(microbatch);
  return microbatch;
}

void Loader::prefetch() {
  try {
    for (int64_t first = config_.consumed_samples;; first += config_.micro * config_.dp_size) {
      Microbatch microbatch = make(first);
      std::unique_lock lock(mutex_);
      changed_.wait(
          lock, [&] { return stop_ || static_cast<int64_t>(ready_.size()) < config_.prefetch; });
      if (stop_) return;
      ready_.push_back(std::move(microbatch));
      lock.unlock();
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
  }
  changed_.notify_all();
}

Microbatch Loader::make(int64_t first_sample) const {
  const int64_t taken = config_.micro * config_.dp_size;
  if (dataset_->size() - taken < first_sample) {
    fail(ExitCode::Data, "the data ends: samples ", first_sample, " to ", first_sample + taken,
         " are wanted, but there are only ", dataset_->size(), " (", dataset_->describe(), ")");
  }
  Microbatch microbatch{
      .batch = config_.micro, .seq = dataset_->seq(), .first_sample = first_sample};
  const int64_t seq = microbatch.seq;
  std::vector<int32_t> sample(static_cast<size_t>(seq) + 1);
  for (int64_t row = 0; row < config_.micro; ++row) {
    const int64_t index = first_sample + config_.dp_rank * config_.micro + row;
    dataset_->sample(index, sample);
    microbatch.sample_ids.push_back(index);
    for (int64_t t = 0; t < seq; ++t) {
      const int32_t token = sample[t], label = sample[t + 1];
      const bool masked = (config_.pad >= 0 && label == config_.pad) ||
                          (config_.eod_mask_loss && token == config_.eod);
      microbatch.tokens.push_back(config_.pad >= 0 && token == config_.pad ? 0 : token);
      microbatch.labels.push_back(label);
      microbatch.loss_mask.push_back(masked ? 0.0f : 1.0f);
    }
  }
  return microbatch;
}

}  // namespace ferry
