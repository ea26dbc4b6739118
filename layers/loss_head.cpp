#include "layers/loss_head.h"

#include <algorithm>

#include "core/ops/cross_entropy.h"
#include "core/ops/gemm.h"

namespace ferry {
namespace {
constexpr int64_t kChunkMultiple = 128;
}  // namespace

LossHead::LossHead(int64_t vocab, int64_t hidden, DType dtype, double init_std,
                   const TensorParallel& tensor, int64_t max_logit_bytes)
    : weight_(own_), tensor_(tensor), max_logit_bytes_(max_logit_bytes) {
  own_.name = "lm_head/weight";
  own_.shape = {vocab, hidden};
  own_.dtype = dtype;
  own_.init = Init::normal(init_std);
  cut_vocabulary(own_, tensor.rank, tensor.size);
}

LossHead::LossHead(Parameter& tied, const TensorParallel& tensor, int64_t max_logit_bytes)
    : weight_(tied), tensor_(tensor), max_logit_bytes_(max_logit_bytes) {}

void LossHead::tie_across_stages() {
  CHECK(&weight_ == &own_, "the head has the weight of an embedding on its own stage");
  own_.name = "embedding/weight";
  own_.axis = ReduceAxis::Tied;
}

int64_t loss_chunk_tokens(int64_t vocab, DType dtype, int64_t max_logit_bytes) {
  const int64_t row_bytes = vocab * static_cast<int64_t>(size_of(dtype));
  return std::max(kChunkMultiple, max_logit_bytes / row_bytes / kChunkMultiple * kChunkMultiple);
}

Tensor LossHead::forward(Pass& pass, const Tensor& x) {
  Stream& stream = pass.stream;
  const Tensor all = tensor_.enter(stream, x);
  const int64_t num_tokens = all.dim(0), columns = weight_.shape[0];
  const DType statistics = accumulate_dtype(x.dtype());
  const int64_t chunk =
      std::min(num_tokens, loss_chunk_tokens(columns, x.dtype(), max_logit_bytes_));
  const bool with_gradient = pass.training && pass.tape().recording();

  const Tensor loss_sum = own_loss_sum(pass, statistics);
  const Tensor token_loss = Tensor::empty(stream, "token loss", {num_tokens}, statistics);
  const Tensor logits = Tensor::empty(stream, "logits", {chunk, columns}, x.dtype());
  Tensor dx;
  if (with_gradient) dx = Tensor::empty(stream, name_of(Label::LossHead), all.shape(), x.dtype());

  for (int64_t begin = 0; begin < num_tokens; begin += chunk) {
    const int64_t end = std::min(begin + chunk, num_tokens);
    const Tensor part = logits.rows(0, end - begin), x_part = all.rows(begin, end);
    gemm(stream, part, x_part, Transpose::No, weight_.value, Transpose::Yes);
    if (observer_) observer_(stream, part);
    chunk_loss(pass, token_loss.rows(begin, end), loss_sum, part, begin, with_gradient);
    if (!with_gradient) continue;
    gemm(stream, weight_.grad, part, Transpose::Yes, x_part, Transpose::No, 1);
    gemm(stream, dx.rows(begin, end), part, Transpose::No, weight_.value, Transpose::No);
  }
  if (with_gradient) pass.tape().save(stream, Label::LossHead, {tensor_.leave(stream, dx)});
  return token_loss;
}

Tensor LossHead::own_loss_sum(Pass& pass, DType dtype) const {
  // Every rank has the total, so that the totals of all ranks can be summed by name.
  const Tensor total = pass.totals.get(pass.stream, "loss", {1}, dtype);
  if (tensor_.rank == 0) return total;
  const Tensor unused = Tensor::empty(pass.stream, "statistics", {1}, dtype);
  pass.stream.zero(unused);
  return unused;
}

void LossHead::chunk_loss(Pass& pass, const Tensor& token_loss, const Tensor& loss_sum,
                          const Tensor& logits, int64_t begin, bool with_gradient) const {
  Stream& stream = pass.stream;
  const int64_t num_tokens = logits.dim(0);
  const Tensor labels = pass.batch.labels.rows(begin, begin + num_tokens);
  const Tensor mask = pass.batch.loss_mask.rows(begin, begin + num_tokens);
  if (tensor_.size == 1) {
    cross_entropy(stream, token_loss, loss_sum, logits, labels, mask, with_gradient);
    return;
  }
  const VocabularyPart part =
      vocabulary_part(weight_.global_shape()[0], tensor_.rank, tensor_.size);
  const DType dtype = token_loss.dtype();
  const Tensor own = Tensor::empty(stream, "statistics", {num_tokens, 3}, dtype);
  const Tensor all = Tensor::empty(stream, "statistics", {tensor_.size, num_tokens, 3}, dtype);
  cross_entropy_part(stream, own, logits, labels, part.first, part.real_rows);
  tensor_.group->all_gather(stream, all, own);
  cross_entropy_join(stream, token_loss, loss_sum, logits, all, labels, mask, part.first,
                     part.real_rows, with_gradient);
}

Tensor LossHead::backward(Pass& pass, const Tensor&) {
  return pass.tape().load<1>(pass.stream, Label::LossHead)[0];
}

void LossHead::visit(const ParameterVisitor& visitor) {
  if (&weight_ == &own_) visitor(own_);
}

}  // namespace ferry
