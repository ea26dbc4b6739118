#include "layers/sequence_slice.h"

#include <utility>

namespace ferry {

// Cutting and joining rows is what sequence parallelism does at the borders of its regions.
SequenceSlice::SequenceSlice(std::unique_ptr<Module> inner, const TensorParallel& tensor)
    : inner_(std::move(inner)), tensor_(tensor) {
  CHECK(tensor.size > 1 && !tensor.sequence, "the rows are cut already, or there is one rank");
  tensor_.sequence = true;
}

Tensor SequenceSlice::forward(Pass& pass, const Tensor& x) {
  // A copy, so that what is saved of it does not keep all of x.
  const Tensor rows = tensor_.own_rows(x);
  const Tensor own = Tensor::empty(pass.stream, "sequence slice", rows.shape(), rows.dtype());
  pass.stream.copy(own, rows);
  return tensor_.enter(pass.stream, inner_->forward(pass, own));
}

Tensor SequenceSlice::backward(Pass& pass, const Tensor& dy) {
  return tensor_.enter(pass.stream, inner_->backward(pass, tensor_.own_rows(dy)));
}

}  // namespace ferry
