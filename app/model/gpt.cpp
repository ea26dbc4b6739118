#include "app/model/gpt.h"

#include "layers/attention.h"
#include "layers/block.h"
#include "layers/init.h"
#include "layers/mlp.h"
#include "layers/sequence_slice.h"
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

ModelPart whole_model(const GptConfig& config) { return {true, 0, config.model.layers, true}; }

Gpt::Gpt(const GptConfig& config, const std::string& force_routing, uint64_t seed,
         const ModelAxes& axes, const ModelPart& part) {
  const ModelConfig& model = config.model;
  const TensorParallel& tensor = axes.tensor;
  const DType dtype = dtype_of(model.precision);
  const MlpConfig mlp{model.hidden, model.ffn, model.init_std,
                      output_init_std(model.init_std, model.layers), dtype};
  const BlockConfig block{model.hidden, model.norm_eps, model.hidden_dropout, dtype};
  const auto rope = std::make_shared<RopeCache>(model.head_dim, model.rope_theta, dtype);

  if (part.embedding)
    embedding_ =
        std::make_unique<Embedding>(model.vocab, model.hidden, dtype, model.init_std, tensor);
  for (int64_t layer = part.first_layer; layer < part.first_layer + part.num_layers; ++layer) {
    const std::string name = concat("layers/", layer);
    auto attention = std::make_unique<Attention>(name + "/attention",
                                                 attention_config(model, dtype), rope, tensor);
    std::unique_ptr<Module> feed_forward;
    if (config.moe.is_moe_layer(layer)) {
      auto moe = std::make_unique<MoeLayer>(name + "/moe", config.moe, mlp, force_routing, seed,
                                            tensor, axes.expert);
      int64_t moe_layer = 0;
      for (int64_t i = 0; i < layer; ++i) moe_layer += config.moe.is_moe_layer(i);
      expert_counts_.push_back({moe_layer, moe->router().counts_name()});
      feed_forward = std::move(moe);
      if (tensor.size > 1 && !tensor.sequence)
        feed_forward = std::make_unique<SequenceSlice>(std::move(feed_forward), tensor);
    } else {
      feed_forward = std::make_unique<Mlp>(name + "/mlp", mlp, Label::Mlp, tensor);
    }
    blocks_.push_back(std::make_unique<Block>(name, block, std::move(attention),
                                              std::move(feed_forward), tensor));
  }
  if (part.head) {
    final_norm_ = std::make_unique<RmsNorm>("final_norm", model.hidden, dtype, model.norm_eps,
                                            Label::FinalNorm, tensor);
    head_ =
        model.tie_embeddings && part.embedding
            ? std::make_unique<LossHead>(embedding_->weight(), tensor)
            : std::make_unique<LossHead>(model.vocab, model.hidden, dtype, model.init_std, tensor);
  }
  if (model.tie_embeddings && part.embedding != part.head) {
    if (part.embedding) embedding_->tie_across_stages();
    if (part.head) head_->tie_across_stages();
  }
}

void Gpt::initialise(Stream& stream, uint64_t seed) {
  visit([&](Parameter& parameter) { allocate_value(stream, parameter, seed); });
}

Tensor Gpt::forward(Pass& pass, const Tensor& input, BlockHooks& hooks) {
  int block = first_block_;
  Tensor x = input;
  if (embedding_) {
    hooks.before_forward(pass, block++);
    x = embedding_->forward(pass, {});
  }
  for (const auto& layer : blocks_) {
    hooks.before_forward(pass, block++);
    x = layer->forward(pass, x);
  }
  if (!head_) return x;
  hooks.before_forward(pass, block);
  return head_->forward(pass, final_norm_->forward(pass, x));
}

Tensor Gpt::backward(Pass& pass, const Tensor& dy, BlockHooks& hooks) {
  int block = first_block_ + num_blocks() - 1;
  Tensor dx = dy;
  if (head_) {
    dx = final_norm_->backward(pass, head_->backward(pass, {}));
    hooks.after_backward(pass, block--);
  }
  for (auto layer = blocks_.rbegin(); layer != blocks_.rend(); ++layer) {
    dx = (*layer)->backward(pass, dx);
    hooks.after_backward(pass, block--);
  }
  if (!embedding_) return dx;
  embedding_->backward(pass, dx);
  hooks.after_backward(pass, block);
  return {};
}

void Gpt::visit(const ParameterVisitor& visitor) {
  for (const auto& block : parameters_by_block())
    for (Parameter* parameter : block) visitor(*parameter);
}

int Gpt::num_blocks() const {
  return static_cast<int>(blocks_.size()) + (embedding_ ? 1 : 0) + (head_ ? 1 : 0);
}

std::vector<std::vector<Parameter*>> Gpt::parameters_by_block() {
  std::vector<std::vector<Parameter*>> blocks;
  const auto add = [&](auto&... modules) {
    std::vector<Parameter*>& block = blocks.emplace_back();
    (modules.visit([&](Parameter& parameter) { block.push_back(&parameter); }), ...);
  };
  if (embedding_) add(*embedding_);
  for (const auto& layer : blocks_) add(*layer);
  if (head_) add(*final_norm_, *head_);
  return blocks;
}

std::vector<std::string> parameter_names(const GptConfig& config) {
  std::vector<std::string> names;
  Gpt(config, "none", 0).visit([&](Parameter& parameter) { names.push_back(parameter.name); });
  return names;
}

}  // namespace ferry
