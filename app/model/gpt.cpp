#include "app/model/gpt.h"

#include <algorithm>
#include <utility>

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

AttentionConfig attention_config(const GptConfig& gpt, DType dtype) {
  const ModelConfig& model = gpt.model;
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
  config.deterministic = gpt.deterministic;
  return config;
}

}  // namespace

ModelPart whole_model(const GptConfig& config) { return {true, 0, config.model.layers, true}; }

Gpt::Gpt(const GptConfig& config, const std::string& force_routing, uint64_t seed,
         const ModelAxes& axes, const ModelPart& part, const GptRecompute& recompute,
         const GptGraphs& graphs)
    : chunks_(chunks_of(part.num_layers, recompute)),
      layer_input_(Label::Layer, recompute.distribute ? axes.tensor : TensorParallel()) {
  const ModelConfig& model = config.model;
  const TensorParallel& tensor = axes.tensor;
  const DType dtype = dtype_of(model.precision);
  const MlpConfig mlp{model.hidden, model.ffn, model.init_std,
                      output_init_std(model.init_std, model.layers), dtype};
  const BlockConfig block{model.hidden, model.norm_eps, model.hidden_dropout, dtype};
  const auto rope = std::make_shared<RopeCache>(model.head_dim, model.rope_theta, dtype);

  const ModuleDecorator decorate = [&](Label label,
                                       std::unique_ptr<Module> module) -> std::unique_ptr<Module> {
    if (!recompute.modules.contains(label)) return module;
    return std::make_unique<Recompute>(std::move(module), label);
  };
  const ModuleDecorator as_graphs = [&](Label label,
                                        std::unique_ptr<Module> module) -> std::unique_ptr<Module> {
    if (!graphs.parts.contains(label)) return module;
    return std::make_unique<GraphedModule>(std::move(module), *graphs.graphs);
  };
  const RouterDecorator decorate_router =
      [&](std::unique_ptr<RoutingModule> router) -> std::unique_ptr<RoutingModule> {
    if (!graphs.parts.contains(Label::Router)) return router;
    return std::make_unique<Graphed<RoutingModule, Routing>>(std::move(router), *graphs.graphs);
  };

  if (part.embedding)
    embedding_ =
        std::make_unique<Embedding>(model.vocab, model.hidden, dtype, model.init_std, tensor);
  for (int64_t layer = part.first_layer; layer < part.first_layer + part.num_layers; ++layer) {
    const std::string name = concat("layers/", layer);
    auto attention =
        as_graphs(Label::Attn,
                  std::make_unique<Attention>(name + "/attention", attention_config(config, dtype),
                                              rope, tensor, decorate));
    std::unique_ptr<Module> feed_forward;
    if (config.moe.is_moe_layer(layer)) {
      auto moe = std::make_unique<MoeLayer>(name + "/moe", config.moe, mlp, force_routing, seed,
                                            tensor, axes.expert, decorate, decorate_router);
      int64_t moe_layer = 0;
      for (int64_t i = 0; i < layer; ++i) moe_layer += config.moe.is_moe_layer(i);
      expert_counts_.push_back({moe_layer, moe->counts_name()});
      feed_forward = std::move(moe);
      if (tensor.size > 1 && !tensor.sequence)
        feed_forward = std::make_unique<SequenceSlice>(std::move(feed_forward), tensor);
      feed_forward = as_graphs(Label::Moe, decorate(Label::Moe, std::move(feed_forward)));
    } else {
      feed_forward = as_graphs(
          Label::Mlp,
          decorate(Label::Mlp, std::make_unique<Mlp>(name + "/mlp", mlp, Label::Mlp, tensor)));
    }
    blocks_.push_back(
        as_graphs(Label::Layer, std::make_unique<Block>(name, block, std::move(attention),
                                                        std::move(feed_forward), tensor)));
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

std::vector<Gpt::Chunk> Gpt::chunks_of(int64_t num_layers, const GptRecompute& recompute) {
  using Layers = GptRecompute::Layers;
  if (recompute.layers == Layers::None) return {{0, num_layers, false}};
  CHECK(recompute.num_layers > 0, "recompute of ", recompute.num_layers, " layers");
  const bool uniform = recompute.layers == Layers::Uniform;
  const int64_t length = uniform ? recompute.num_layers : 1;
  const int64_t end = uniform ? num_layers : std::min(recompute.num_layers, num_layers);
  std::vector<Chunk> chunks;
  for (int64_t layer = 0; layer < end; layer += length)
    chunks.push_back({layer, std::min(layer + length, end), true});
  chunks.push_back({end, num_layers, false});
  return chunks;
}

Tensor Gpt::forward_chunk(Pass& pass, const Chunk& chunk, const Tensor& x, BlockHooks& hooks) {
  Tensor y = x;
  for (int64_t layer = chunk.begin; layer < chunk.end; ++layer) {
    hooks.before_forward(pass, block_of(layer));
    y = blocks_[static_cast<size_t>(layer)]->forward(pass, y);
  }
  return y;
}

Tensor Gpt::backward_chunk(Pass& pass, const Chunk& chunk, const Tensor& dy, BlockHooks& hooks) {
  Tensor dx = dy;
  for (int64_t layer = chunk.end; layer-- > chunk.begin;) {
    dx = blocks_[static_cast<size_t>(layer)]->backward(pass, dx);
    hooks.after_backward(pass, block_of(layer));
  }
  return dx;
}

Tensor Gpt::forward(Pass& pass, const Tensor& input, BlockHooks& hooks) {
  Tensor x = input;
  if (embedding_) {
    hooks.before_forward(pass, first_block_);
    x = embedding_->forward(pass, {});
  }
  for (const Chunk& chunk : chunks_) {
    const auto run = [&](const Tensor& in) { return forward_chunk(pass, chunk, in, hooks); };
    x = chunk.recomputed ? layer_input_.forward(pass, x, run) : run(x);
  }
  if (!head_) return x;
  hooks.before_forward(pass, first_block_ + num_blocks() - 1);
  return head_->forward(pass, final_norm_->forward(pass, x));
}

Tensor Gpt::backward(Pass& pass, const Tensor& dy, BlockHooks& hooks) {
  Tensor dx = dy;
  if (head_) {
    dx = final_norm_->backward(pass, head_->backward(pass, {}));
    hooks.after_backward(pass, first_block_ + num_blocks() - 1);
  }
  BlockHooks nobody;
  for (auto chunk = chunks_.rbegin(); chunk != chunks_.rend(); ++chunk) {
    const auto again = [&](const Tensor& in) { return forward_chunk(pass, *chunk, in, nobody); };
    const auto run = [&](const Tensor& dout) { return backward_chunk(pass, *chunk, dout, hooks); };
    dx = chunk->recomputed ? layer_input_.backward(pass, dx, again, run) : run(dx);
  }
  if (!embedding_) return dx;
  embedding_->backward(pass, dx);
  hooks.after_backward(pass, first_block_);
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
