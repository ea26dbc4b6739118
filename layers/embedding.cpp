#include "layers/embedding.h"

#include "core/ops/embedding.h"

namespace ferry {

Embedding::Embedding(int64_t vocab, int64_t hidden, DType dtype, double init_std) {
  weight_.name = "embedding/weight";
  weight_.shape = {vocab, hidden};
  weight_.dtype = dtype;
  weight_.init = Init::normal(init_std);
}

Tensor Embedding::forward(Pass& pass, const Tensor&) {
  const Tensor y =
      Tensor::empty(pass.stream, "embedding", {pass.batch.batch * pass.batch.seq, weight_.shape[1]},
                    weight_.dtype);
  embedding_forward(pass.stream, y, weight_.value, pass.batch.tokens);
  return y;
}

Tensor Embedding::backward(Pass& pass, const Tensor& dy) {
  embedding_backward(pass.stream, weight_.grad, dy, pass.batch.tokens);
  return {};
}

}  // namespace ferry
