#include "app/model/gpt.h"

#include "layers/attention.h"
#include "layers/block.h"
#include "layers/init.h"
#include "moe/moe_layer.h"

namespace ferry {
namespace {

std::optional<QkNormKind> qk_norm_kind(const std::string& name) {
  if (name == "head") return QkNormKind::Head;
  if (name == "full") return QkNormKind::Full;
  return std::nullopt;
}

AttentionConfig attention_config(const ModelConfig& model, DType dtype) {
  AttentionConfig config;
  config.hidden = model.hidden;
  config.heads = model.heads;
  config.kv_heads = model.kv_heads;
  config.head_dim = model.head_dim;
  config.qk_norm = qk_norm_kind(model.qk_norm);
  config.norm_eps = model.norm_eps;
  config.dropout = model.attention_dropout;
  config.init_std = model.init_std;
  config.output_init_std = output_init_std(model.init_std, model.layers);
  config.dtype = dtype;
  return config;
}

}  // namespace

Gpt::Gpt(const GptConfig& config, const std::string& force_routing, uint64_t seed) {
  const ModelConfig& model = config.model;
  const DType dtype = dtype_of(model.precision);
  const MlpConfig mlp{model.hidden, model.ffn, model.init_std,
                      output_init_std(model.init_std, model.layers), dtype};
  const BlockConfig block{model.hidden, model.norm_eps, model.hidden_dropout, dtype};
  const auto rope = std::make_shared<RopeCache>(model.head_dim, model.rope_theta, dtype);

  embedding_ = std::make_unique<Embedding>(model.vocab, model.hidden, dtype, model.init_std);
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const std::string name = concat("layers/", layer);
    auto attention =
        std::make_unique<Attention>(name + "/attention", attention_config(model, dtype), rope);
    std::unique_ptr<Module> feed_forward;
    if (config.moe.is_moe_layer(layer)) {
      auto moe = std::make_unique<MoeLayer>(name + "/moe", config.moe, mlp, force_routing, seed);
      expert_count_names_.push_back(moe->router().counts_name());
      feed_forward = std::move(moe);
    } else {
      feed_forward = std::make_unique<Mlp>(name + "/mlp", mlp, Label::Mlp);
    }
    blocks_.push_back(
        std::make_unique<Block>(name, block, std::move(attention), std::move(feed_forward)));
  }
  final_norm_ = std::make_unique<RmsNorm>("final_norm", model.hidden, dtype, model.norm_eps,
                                          Label::FinalNorm);
  head_ = model.tie_embeddings
              ? std::make_unique<LossHead>(embedding_->weight())
              : std::make_unique<LossHead>(model.vocab, model.hidden, dtype, model.init_std);
}

void Gpt::initialise(Stream& stream, uint64_t seed) {
  visit([&](Parameter& parameter) { allocate_value(stream, parameter, seed); });
}

Tensor Gpt::forward(Pass& pass, BlockHooks& hooks) {
  int block = 0;
  hooks.before_forward(pass, block++);
  Tensor x = embedding_->forward(pass, {});
  for (const auto& layer : blocks_) {
    hooks.before_forward(pass, block++);
    x = layer->forward(pass, x);
  }
  hooks.before_forward(pass, block);
  return head_->forward(pass, final_norm_->forward(pass, x));
}

void Gpt::backward(Pass& pass, BlockHooks& hooks) {
  int block = num_blocks() - 1;
  Tensor dx = final_norm_->backward(pass, head_->backward(pass, {}));
  hooks.after_backward(pass, block--);
  for (auto layer = blocks_.rbegin(); layer != blocks_.rend(); ++layer) {
    dx = (*layer)->backward(pass, dx);
    hooks.after_backward(pass, block--);
  }
  embedding_->backward(pass, dx);
  hooks.after_backward(pass, block);
}

void Gpt::visit(const ParameterVisitor& visitor) {
  for (const auto& block : parameters_by_block())
    for (Parameter* parameter : block) visitor(*parameter);
}

std::vector<std::vector<Parameter*>> Gpt::parameters_by_block() {
  std::vector<std::vector<Parameter*>> blocks;
  const auto add = [&](auto&... modules) {
    std::vector<Parameter*>& block = blocks.emplace_back();
    (modules.visit([&](Parameter& parameter) { block.push_back(&parameter); }), ...);
  };
  add(*embedding_);
  for (const auto& layer : blocks_) add(*layer);
  add(*final_norm_, *head_);
  return blocks;
}

}  // namespace ferry
