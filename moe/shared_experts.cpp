#include "moe/shared_experts.h"

#include "core/ops/elementwise.h"
#include "core/ops/gemm.h"

namespace ferry {
namespace {

TensorParallel with_own_tokens(TensorParallel tensor) {
  tensor.sequence = true;
  return tensor;
}

}  // namespace

SharedExperts::SharedExperts(const std::string& name, const MlpConfig& config, bool gate,
                             const TensorParallel& tensor)
    : mlp_(name, config, Label::SharedExperts, with_own_tokens(tensor)), has_gate_(gate) {
  gate_.name = name + "/gate/weight";
  gate_.shape = {1, config.hidden};
  gate_.dtype = config.dtype;
  gate_.init = Init::normal(config.init_std);
  tensor.replicate_inside(gate_);
}

Tensor SharedExperts::forward(Pass& pass, const Tensor& x) {
  const Tensor y = mlp_.forward(pass, x);
  if (!has_gate_) return y;
  Stream& stream = pass.stream;
  const Tensor gate = Tensor::empty(stream, "shared experts gate", {x.dim(0), 1}, x.dtype());
  gemm(stream, gate, x, Transpose::No, gate_.value, Transpose::Yes);
  const Tensor gated = Tensor::empty(stream, name_of(Label::SharedExperts), y.shape(), y.dtype());
  sigmoid_gate_forward(stream, gated, y, gate.reshape({x.dim(0)}));
  pass.tape().save(stream, Label::SharedExperts, {x, y, gate});
  return gated;
}

Tensor SharedExperts::backward(Pass& pass, const Tensor& dy) {
  if (!has_gate_) return mlp_.backward(pass, dy);
  Stream& stream = pass.stream;
  const auto [x, y, gate] = pass.tape().load<3>(stream, Label::SharedExperts);
  const Tensor dmlp = Tensor::empty(stream, "gradients", y.shape(), y.dtype());
  const Tensor dgate = Tensor::empty(stream, "gradients", gate.shape(), gate.dtype());
  sigmoid_gate_backward(stream, dmlp, dgate.reshape({x.dim(0)}), dy, y, gate.reshape({x.dim(0)}));
  gemm(stream, gate_.grad, dgate, Transpose::Yes, x, Transpose::No, 1);
  const Tensor dx = Tensor::empty(stream, "gradients", x.shape(), x.dtype());
  gemm(stream, dx, dgate, Transpose::No, gate_.value, Transpose::No);
  add(stream, dx, dx, mlp_.backward(pass, dmlp));
  return dx;
}

void SharedExperts::visit(const ParameterVisitor& visitor) {
  mlp_.visit(visitor);
  if (has_gate_) visitor(gate_);
}

}  // namespace ferry
