#include "layers/block.h"

#include "core/ops/elementwise.h"

namespace ferry {

Block::Block(const std::string& name, const BlockConfig& config, std::unique_ptr<Module> attention,
             std::unique_ptr<Module> mlp, const TensorParallel& tensor)
    : attn_norm_(name + "/attn_norm", config.hidden, config.dtype, config.norm_eps, Label::AttnNorm,
                 tensor),
      attention_(std::move(attention)),
      attn_dropout_(name + "/attn_dropout", config.dropout, tensor),
      mlp_norm_(name + "/mlp_norm", config.hidden, config.dtype, config.norm_eps, Label::MlpNorm,
                tensor),
      mlp_(std::move(mlp)),
      mlp_dropout_(name + "/mlp_dropout", config.dropout, tensor) {}

Tensor Block::forward(Pass& pass, const Tensor& x) {
  const Tensor attended =
      attn_dropout_.forward(pass, attention_->forward(pass, attn_norm_.forward(pass, x)));
  const auto [x1, normed] = mlp_norm_.forward_add(pass, x, attended);
  const Tensor branch = mlp_dropout_.forward(pass, mlp_->forward(pass, normed));
  const Tensor y = Tensor::empty(pass.stream, "residual", x.shape(), x.dtype());
  add(pass.stream, y, x1, branch);
  return y;
}

Tensor Block::backward(Pass& pass, const Tensor& dy) {
  const Tensor dnormed = mlp_->backward(pass, mlp_dropout_.backward(pass, dy));
  const Tensor dx1 = mlp_norm_.backward_add(pass, dnormed, dy);
  const Tensor dattended = attention_->backward(pass, attn_dropout_.backward(pass, dx1));
  return attn_norm_.backward_add(pass, dattended, dx1);
}

void Block::visit(const ParameterVisitor& visitor) {
  attn_norm_.visit(visitor);
  attention_->visit(visitor);
  mlp_norm_.visit(visitor);
  mlp_->visit(visitor);
}

}  // namespace ferry
