#include "layers/linear.h"

#include "core/ops/gemm.h"

namespace ferry {

Linear::Linear(const std::string& name, int64_t in, int64_t out, DType dtype, Init init,
               Label label)
    : label_(label) {
  weight_.name = name + "/weight";
  weight_.shape = {out, in};
  weight_.dtype = dtype;
  weight_.init = init;
}

void Linear::cut_outputs(const TensorParallel& tensor,
                         std::initializer_list<int64_t> section_rows) {
  cut_rows(weight_, {section_rows.begin(), section_rows.size()}, tensor.rank, tensor.size);
  enters_ = tensor;
}

void Linear::cut_inputs(const TensorParallel& tensor) {
  cut_columns(weight_, tensor.rank, tensor.size);
  leaves_ = tensor;
}

Tensor Linear::forward(Pass& pass, const Tensor& x) {
  Stream& stream = pass.stream;
  const Tensor all = enters_.enter(stream, x);
  const Tensor y =
      Tensor::empty(stream, name_of(label_), {all.dim(0), weight_.shape[0]}, x.dtype());
  gemm(stream, y, all, Transpose::No, weight_.value, Transpose::Yes);
  pass.tape().save(stream, label_, {x});
  return leaves_.leave(stream, y);
}

Tensor Linear::backward(Pass& pass, const Tensor& dy) {
  Stream& stream = pass.stream;
  const auto [x] = pass.tape().load<1>(stream, label_);
  const Tensor all = enters_.enter(stream, x);
  const Tensor dall = leaves_.enter(stream, dy);
  gemm(stream, weight_.grad, dall, Transpose::Yes, all, Transpose::No, 1);
  const Tensor dx = Tensor::empty(stream, "gradients", all.shape(), x.dtype());
  gemm(stream, dx, dall, Transpose::No, weight_.value, Transpose::No);
  return enters_.leave(stream, dx);
}

}  // namespace ferry
