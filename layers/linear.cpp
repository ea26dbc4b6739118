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

Tensor Linear::forward(Pass& pass, const Tensor& x) {
  const Tensor y =
      Tensor::empty(pass.stream, name_of(label_), {x.dim(0), weight_.shape[0]}, x.dtype());
  gemm(pass.stream, y, x, Transpose::No, weight_.value, Transpose::Yes);
  pass.tape().save(pass.stream, label_, {x});
  return y;
}

Tensor Linear::backward(Pass& pass, const Tensor& dy) {
  const auto [x] = pass.tape().load<1>(pass.stream, label_);
  gemm(pass.stream, weight_.grad, dy, Transpose::Yes, x, Transpose::No, 1);
  const Tensor dx = Tensor::empty(pass.stream, "gradients", x.shape(), x.dtype());
  gemm(pass.stream, dx, dy, Transpose::No, weight_.value, Transpose::No);
  return dx;
}

}  // namespace ferry
