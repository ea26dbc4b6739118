#include "layers/mlp.h"

#include "core/ops/gemm.h"
#include "core/ops/swiglu.h"

namespace ferry {

Mlp::Mlp(const std::string& name, const MlpConfig& config, Label label,
         const TensorParallel& tensor)
    : label_(label), tensor_(tensor) {
  fc1_.name = name + "/fc1/weight";
  fc1_.shape = {2 * config.ffn, config.hidden};
  fc1_.dtype = config.dtype;
  fc1_.init = Init::normal(config.init_std);
  fc2_.name = name + "/fc2/weight";
  fc2_.shape = {config.hidden, config.ffn};
  fc2_.dtype = config.dtype;
  fc2_.init = Init::normal(config.output_init_std);
  const int64_t gate_up[] = {config.ffn, config.ffn};
  cut_rows(fc1_, gate_up, tensor.rank, tensor.size);
  cut_columns(fc2_, tensor.rank, tensor.size);
}

Tensor Mlp::forward(Pass& pass, const Tensor& x) {
  Stream& stream = pass.stream;
  const Tensor all = tensor_.enter(stream, x);
  const int64_t num_tokens = all.dim(0), ffn = fc2_.shape[1];
  const Tensor gate_up = Tensor::empty(stream, name_of(label_), {num_tokens, 2 * ffn}, x.dtype());
  gemm(stream, gate_up, all, Transpose::No, fc1_.value, Transpose::Yes);
  const Tensor h = Tensor::empty(stream, "mlp activation", {num_tokens, ffn}, x.dtype());
  swiglu_forward(stream, h, gate_up, {});
  const Tensor y = Tensor::empty(stream, "mlp output", {num_tokens, fc2_.shape[0]}, x.dtype());
  gemm(stream, y, h, Transpose::No, fc2_.value, Transpose::Yes);
  pass.tape().save(stream, label_, {x, gate_up, h});
  return tensor_.leave(stream, y);
}

Tensor Mlp::backward(Pass& pass, const Tensor& dy) {
  Stream& stream = pass.stream;
  const auto [x, gate_up, h] = pass.tape().load<3>(stream, label_);
  const Tensor dall = tensor_.enter(stream, dy);
  gemm(stream, fc2_.grad, dall, Transpose::Yes, h, Transpose::No, 1);
  const Tensor dh = Tensor::empty(stream, "gradients", h.shape(), h.dtype());
  gemm(stream, dh, dall, Transpose::No, fc2_.value, Transpose::No);
  const Tensor dgate_up = Tensor::empty(stream, "gradients", gate_up.shape(), gate_up.dtype());
  swiglu_backward(stream, dgate_up, {}, dh, gate_up, {});
  const Tensor all = tensor_.enter(stream, x);
  gemm(stream, fc1_.grad, dgate_up, Transpose::Yes, all, Transpose::No, 1);
  const Tensor dx = Tensor::empty(stream, "gradients", all.shape(), x.dtype());
  gemm(stream, dx, dgate_up, Transpose::No, fc1_.value, Transpose::No);
  return tensor_.leave(stream, dx);
}

void Mlp::visit(const ParameterVisitor& visitor) {
  visitor(fc1_);
  visitor(fc2_);
}

}  // namespace ferry
