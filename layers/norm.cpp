#include "layers/norm.h"

#include "core/ops/rmsnorm.h"

namespace ferry {

RmsNorm::RmsNorm(const std::string& name, int64_t width, DType dtype, double eps, Label label,
                 const TensorParallel& tensor)
    : eps_(eps), label_(label) {
  weight_.name = name + "/weight";
  weight_.shape = {width};
  weight_.dtype = dtype;
  weight_.init = Init::ones();
  weight_.decay = false;
  tensor.replicate(weight_);
}

Tensor RmsNorm::forward(Pass& pass, const Tensor& x) {
  const Tensor y = Tensor::empty(pass.stream, "layernorm", x.shape(), x.dtype());
  const Tensor rstd =
      Tensor::empty(pass.stream, "statistics", {x.dim(0)}, accumulate_dtype(x.dtype()));
  rmsnorm_forward(pass.stream, y, rstd, x, weight_.value, eps_);
  save(pass, x, rstd, y);
  return y;
}

std::pair<Tensor, Tensor> RmsNorm::forward_add(Pass& pass, const Tensor& x, const Tensor& branch) {
  const Tensor sum = Tensor::empty(pass.stream, name_of(label_), x.shape(), x.dtype());
  const Tensor y = Tensor::empty(pass.stream, "layernorm", x.shape(), x.dtype());
  const Tensor rstd =
      Tensor::empty(pass.stream, "statistics", {x.dim(0)}, accumulate_dtype(x.dtype()));
  add_rmsnorm_forward(pass.stream, sum, y, rstd, x, branch, weight_.value, eps_);
  save(pass, sum, rstd, y);
  return {sum, y};
}

void RmsNorm::save(Pass& pass, const Tensor& x, const Tensor& rstd, const Tensor& y) {
  pass.tape().save(pass.stream, label_, {x, rstd});
  pass.tape().save_rebuildable(
      Label::Layernorm, y, {x},
      [weight = weight_.value, eps = eps_](Stream& stream, std::span<const Tensor> inputs) {
        const Tensor& input = inputs[0];
        const Tensor again = Tensor::empty(stream, "layernorm", input.shape(), input.dtype());
        const Tensor unused =
            Tensor::empty(stream, "statistics", {input.dim(0)}, accumulate_dtype(input.dtype()));
        rmsnorm_forward(stream, again, unused, input, weight, eps);
        return again;
      });
}

Tensor RmsNorm::backward_add(Pass& pass, const Tensor& dy, const Tensor& dresidual) {
  const auto [x, rstd] = pass.tape().load<2>(pass.stream, label_);
  const Tensor dx = Tensor::empty(pass.stream, "gradients", x.shape(), x.dtype());
  rmsnorm_backward(pass.stream, dx, weight_.grad, dy, x, rstd, weight_.value, dresidual);
  return dx;
}

}  // namespace ferry
