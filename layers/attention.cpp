#include "layers/attention.h"

#include "layers/core_attention.h"
#include "layers/init.h"

namespace ferry {

Attention::Attention(const std::string& name, const AttentionConfig& config,
                     std::shared_ptr<RopeCache> rope_cache, const TensorParallel& tensor,
                     const ModuleDecorator& decorate)
    : qkv_(name + "/qkv", config.hidden, (config.heads + 2 * config.kv_heads) * config.head_dim,
           config.dtype, Init::normal(config.init_std), Label::QkvLinear),
      rotary_norm_(name, config, std::move(rope_cache), tensor),
      core_(decorate(Label::CoreAttn, std::make_unique<CoreAttention>(name, config, tensor))),
      proj_(name + "/proj", config.heads * config.head_dim, config.hidden, config.dtype,
            Init::normal(config.output_init_std), Label::AttnProj) {
  const int64_t q_width = config.heads * config.head_dim;
  const int64_t kv_width = config.kv_heads * config.head_dim;
  qkv_.cut_outputs(tensor, {q_width, kv_width, kv_width});
  proj_.cut_inputs(tensor);
}

Tensor Attention::forward(Pass& pass, const Tensor& x) {
  const Tensor qkv = rotary_norm_.forward(pass, qkv_.forward(pass, x));
  return proj_.forward(pass, core_->forward(pass, qkv));
}

Tensor Attention::backward(Pass& pass, const Tensor& dy) {
  const Tensor dqkv = core_->backward(pass, proj_.backward(pass, dy));
  return qkv_.backward(pass, rotary_norm_.backward(pass, dqkv));
}

void Attention::visit(const ParameterVisitor& visitor) {
  qkv_.visit(visitor);
  rotary_norm_.visit(visitor);
  proj_.visit(visitor);
}

}  // namespace ferry
