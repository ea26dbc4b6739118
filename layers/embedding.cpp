#include "layers/embedding.h"

#include "core/ops/embedding.h"

namespace ferry {
namespace {

VocabularyRows rows_of(const Parameter& weight, const TensorParallel& tensor) {
  if (tensor.size == 1) return {};
  const int64_t vocab = weight.global_shape()[0];
  return {vocabulary_part(vocab, tensor.rank, tensor.size).first, vocab};
}

}  // namespace

Embedding::Embedding(int64_t vocab, int64_t hidden, DType dtype, double init_std,
                     const TensorParallel& tensor)
    : tensor_(tensor) {
  weight_.name = "embedding/weight";
  weight_.shape = {vocab, hidden};
  weight_.dtype = dtype;
  weight_.init = Init::normal(init_std);
  cut_vocabulary(weight_, tensor.rank, tensor.size);
}

Tensor Embedding::forward(Pass& pass, const Tensor&) {
  const Tensor y =
      Tensor::empty(pass.stream, "embedding", {pass.batch.batch * pass.batch.seq, weight_.shape[1]},
                    weight_.dtype);
  embedding_forward(pass.stream, y, weight_.value, pass.batch.tokens, rows_of(weight_, tensor_));
  return tensor_.leave(pass.stream, y);
}

Tensor Embedding::backward(Pass& pass, const Tensor& dy) {
  embedding_backward(pass.stream, weight_.grad, tensor_.enter(pass.stream, dy), pass.batch.tokens,
                     rows_of(weight_, tensor_));
  return {};
}

}  // namespace ferry
