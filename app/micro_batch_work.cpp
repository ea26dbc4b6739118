#include "app/micro_batch_work.h"

#include <chrono>

#include "core/mark.h"

namespace ferry {
namespace {

Tape make_tape(const StepContext& context, PassId id) {
  if (!context.training) return Tape(Tape::Mode::Off);
  if (context.memory == nullptr) return Tape();
  return Tape(Tape::Mode::Record, context.memory->policy(id), &context.memory->saved_bytes());
}

}  // namespace

MicroBatchWork::UnderWay::UnderWay(std::shared_ptr<const Batch> batch_in, Stream& stream,
                                   const StepContext& context, PassId id)
    : batch(std::move(batch_in)),
      tape(make_tape(context, id)),
      pass(stream, tape, *batch, context.totals, context.key, context.training) {}

MicroBatchWork::MicroBatchWork(const std::vector<std::unique_ptr<Gpt>>& chunks, Stream& stream,
                               BatchFeed& feed, BlockHooks& hooks, const StepContext& context,
                               std::function<void(int, int)> before_backward)
    : chunks_(chunks),
      stream_(stream),
      feed_(feed),
      hooks_(hooks),
      context_(context),
      before_backward_(std::move(before_backward)) {}

std::shared_ptr<const Batch> MicroBatchWork::batch(int micro) {
  // The loader gives micro-batches in order, and so do all schedules begin them.
  while (num_read_ <= micro) {
    const auto start = std::chrono::steady_clock::now();
    auto read = std::make_shared<const Batch>(feed_.next(context_.first_sample));
    data_seconds_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    num_loss_tokens_ += static_cast<double>(read->num_loss_tokens);
    batches_.emplace(num_read_++, std::move(read));
  }
  return batches_.at(micro);
}

Tensor MicroBatchWork::forward(int chunk, int micro, const Tensor& x) {
  if (context_.training) mark(context_.key.step, "forward");
  Gpt& model = *chunks_.at(static_cast<size_t>(chunk));
  const auto [entry, is_new] =
      under_way_.try_emplace({chunk, micro}, batch(micro), stream_, context_, PassId{chunk, micro});
  CHECK(is_new, "micro-batch ", micro, " goes through chunk ", chunk, " twice");
  const Tensor y = model.forward(entry->second.pass, x, hooks_);
  entry->second.tape.forward_done(stream_);
  if (!context_.training) under_way_.erase(entry);
  if (chunk + 1 == static_cast<int>(chunks_.size())) batches_.erase(micro);
  return y;
}

Tensor MicroBatchWork::backward(int chunk, int micro, const Tensor& dy) {
  mark(context_.key.step, "backward");
  if (before_backward_) before_backward_(chunk, micro);
  const auto entry = under_way_.find({chunk, micro});
  CHECK(entry != under_way_.end(), "micro-batch ", micro, " was not in chunk ", chunk);
  UnderWay& state = entry->second;
  const Tensor dx = chunks_.at(static_cast<size_t>(chunk))->backward(state.pass, dy, hooks_);
  state.tape.backward_done(stream_);
  CHECK(state.tape.empty(), state.tape.num_records(), " records were never loaded");
  under_way_.erase(entry);
  return dx;
}

void MicroBatchWork::check_done() const {
  CHECK(under_way_.empty(), under_way_.size(), " micro-batches did not come back");
}

}  // namespace ferry
