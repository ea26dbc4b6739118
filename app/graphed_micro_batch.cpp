#include "app/graphed_micro_batch.h"

namespace ferry {
namespace {

Tensor same_kind(Stream& stream, const Tensor& tensor) {
  return Tensor::empty(stream, "batch of the graph", tensor.shape(), tensor.dtype());
}

}  // namespace

bool GraphedMicroBatch::fits(const Batch& batch) const {
  return batch.batch == batch_->batch && batch.seq == batch_->seq &&
         batch.num_loss_tokens == batch_->num_loss_tokens;
}

bool GraphedMicroBatch::run(Stream& stream, const Batch& batch, int micro,
                            const StepContext& context) {
  CHECK(context.training, "evaluation is not recorded");
  const PassId pass{0, micro};
  if (graph_ == nullptr) record(stream, batch, pass, context);
  if (!fits(batch)) return false;
  stream.copy(batch_->tokens, batch.tokens);
  stream.copy(batch_->labels, batch.labels);
  stream.copy(batch_->loss_mask, batch.loss_mask);
  graph_->launch(stream);
  ++num_launches_;
  if (context.memory != nullptr) context.memory->launched(pass);
  return true;
}

void GraphedMicroBatch::record(Stream& stream, const Batch& batch, PassId pass,
                               const StepContext& context) {
  batch_ = std::make_shared<Batch>(batch);
  batch_->tokens = same_kind(stream, batch.tokens);
  batch_->labels = same_kind(stream, batch.labels);
  batch_->loss_mask = same_kind(stream, batch.loss_mask);
  if (context.memory != nullptr) context.memory->before_recording();
  graph_ = capture(stream, [&] {
    PassUnderWay state(batch_, stream, context, pass);
    BlockHooks nobody;
    // What forward returns, and what backward does, ends here: the graph keeps nothing allocated.
    model_.forward(state.pass, {}, nobody);
    state.tape.forward_done(stream);
    model_.backward(state.pass, {}, nobody);
    state.tape.backward_done(stream);
    CHECK(state.tape.empty(), state.tape.num_records(), " records were never loaded");
  });
}

}  // namespace ferry
