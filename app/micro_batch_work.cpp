#include "app/micro_batch_work.h"

#include <chrono>

#include "app/graphed_micro_batch.h"
#include "core/mark.h"
#include "core/seconds_since.h"

namespace ferry {
namespace {

Tape make_tape(const StepContext& context, PassId id) {
  if (!context.training) return Tape(Tape::Mode::Off);
  if (context.memory == nullptr) return Tape();
  return Tape(Tape::Mode::Record, context.memory->policy(id), &context.memory->saved_bytes());
}

}  // namespace

PassUnderWay::PassUnderWay(std::shared_ptr<const Batch> batch_in, Stream& stream,
                           const StepContext& context, PassId id)
    : batch(std::move(batch_in)),
      tape(make_tape(context, id)),
      pass(stream, tape, *batch, context.totals, context.key, context.training) {}

MicroBatchWork::MicroBatchWork(const std::vector<std::unique_ptr<Gpt>>& chunks, Stream& stream,
                               BatchFeed& feed, BlockHooks& hooks, const StepContext& context,
                               std::function<void(int, int)> before_backward,
                               GraphedMicroBatch* graph)
    : chunks_(chunks),
      stream_(stream),
      feed_(feed),
      hooks_(hooks),
      context_(context),
      before_backward_(std::move(before_backward)),
      graph_(graph) {
  CHECK(context.num_graphed == 0 || (graph != nullptr && chunks.size() == 1),
        "a micro-batch is a graph only as a whole");
}

std::shared_ptr<const Batch> MicroBatchWork::batch(int micro) {
  // The loader gives micro-batches in order, and so do all schedules begin them.
  while (num_read_ <= micro) {
    const auto start = std::chrono::steady_clock::now();
    auto read = std::make_shared<const Batch>(feed_.next(context_.first_sample));
    data_seconds_ += seconds_since(start);
    num_loss_tokens_ += static_cast<double>(read->num_loss_tokens);
    batches_.emplace(num_read_++, std::move(read));
  }
  return batches_.at(micro);
}

bool MicroBatchWork::run_graph(int chunk, int micro) {
  if (!context_.training || micro >= context_.num_graphed) return false;
  CHECK(chunk == 0, "chunk ", chunk, " is not a whole model");
  if (!graph_->run(stream_, *batch(micro), micro, context_)) return false;
  batches_.erase(micro);
  went_back_.insert(micro);
  return true;
}

Tensor MicroBatchWork::forward(int chunk, int micro, const Tensor& x) {
  if (context_.training) mark(context_.key.step, "forward");
  if (run_graph(chunk, micro)) return {};
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
  if (went_back_.erase(micro) > 0) return {};
  const auto entry = under_way_.find({chunk, micro});
  CHECK(entry != under_way_.end(), "micro-batch ", micro, " was not in chunk ", chunk);
  PassUnderWay& state = entry->second;
  const Tensor dx = chunks_.at(static_cast<size_t>(chunk))->backward(state.pass, dy, hooks_);
  state.tape.backward_done(stream_);
  CHECK(state.tape.empty(), state.tape.num_records(), " records were never loaded");
  under_way_.erase(entry);
  return dx;
}

void MicroBatchWork::check_done() const {
  const size_t num_left = under_way_.size() + went_back_.size();
  CHECK(num_left == 0, num_left, " micro-batches did not come back");
}

}  // namespace ferry
