#include "layers/loss_head.h"

#include <algorithm>

#include "core/ops/cross_entropy.h"
#include "core/ops/gemm.h"

namespace ferry {
namespace {
constexpr int64_t kChunkMultiple = 128;
}  // namespace

LossHead::LossHead(int64_t vocab, int64_t hidden, DType dtype, double init_std,
                   int64_t max_logit_bytes)
    : weight_(own_), max_logit_bytes_(max_logit_bytes) {
  own_.name = "lm_head/weight";
  own_.shape = {vocab, hidden};
  own_.dtype = dtype;
  own_.init = Init::normal(init_std);
}

LossHead::LossHead(Parameter& tied, int64_t max_logit_bytes)
    : weight_(tied), max_logit_bytes_(max_logit_bytes) {}

int64_t loss_chunk_tokens(int64_t vocab, DType dtype, int64_t max_logit_bytes) {
  const int64_t row_bytes = vocab * static_cast<int64_t>(size_of(dtype));
  return std::max(kChunkMultiple, max_logit_bytes / row_bytes / kChunkMultiple * kChunkMultiple);
}

Tensor LossHead::forward(Pass& pass, const Tensor& x) {
  Stream& stream = pass.stream;
  const int64_t num_tokens = x.dim(0), vocab = weight_.shape[0];
  const DType statistics = accumulate_dtype(x.dtype());
  const int64_t chunk = std::min(num_tokens, loss_chunk_tokens(vocab, x.dtype(), max_logit_bytes_));
  const bool with_gradient = pass.training && pass.tape().recording();

  const Tensor loss_sum = pass.totals.get(stream, "loss", {1}, statistics);
  const Tensor token_loss = Tensor::empty(stream, "token loss", {num_tokens}, statistics);
  const Tensor logits = Tensor::empty(stream, "logits", {chunk, vocab}, x.dtype());
  Tensor dx;
  if (with_gradient) dx = Tensor::empty(stream, name_of(Label::LossHead), x.shape(), x.dtype());

  for (int64_t begin = 0; begin < num_tokens; begin += chunk) {
    const int64_t end = std::min(begin + chunk, num_tokens);
    const Tensor part = logits.rows(0, end - begin), x_part = x.rows(begin, end);
    gemm(stream, part, x_part, Transpose::No, weight_.value, Transpose::Yes);
    cross_entropy(stream, token_loss.rows(begin, end), loss_sum, part,
                  pass.batch.labels.rows(begin, end), pass.batch.loss_mask.rows(begin, end),
                  with_gradient);
    if (!with_gradient) continue;
    gemm(stream, weight_.grad, part, Transpose::Yes, x_part, Transpose::No, 1);
    gemm(stream, dx.rows(begin, end), part, Transpose::No, weight_.value, Transpose::No);
  }
  if (with_gradient) pass.tape().save(stream, Label::LossHead, {dx});
  return token_loss;
}

Tensor LossHead::backward(Pass& pass, const Tensor&) {
  return pass.tape().load<1>(pass.stream, Label::LossHead)[0];
}

void LossHead::visit(const ParameterVisitor& visitor) {
  if (&weight_ == &own_) visitor(own_);
}

}  // namespace ferry
