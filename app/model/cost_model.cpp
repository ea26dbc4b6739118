#include "app/model/cost_model.h"

#include <algorithm>

#include "core/tape.h"
#include "layers/loss_head.h"

namespace ferry {

namespace {

// Workspace of the matrix libraries.
constexpr int64_t kLibraryBytes = 64 << 20;

// A SwiGLU MLP: gate and up projection [2 * ffn, hidden], down projection [hidden, ffn].
int64_t mlp_parameters(int64_t hidden, int64_t ffn) { return 3 * hidden * ffn; }

}  // namespace

int64_t ParameterCount::total() const {
  return embedding + attention + dense_mlp + experts + shared_experts + router + norms + head;
}

int64_t ParameterCount::active() const { return total() - experts + active_experts; }

int64_t MemoryEstimate::total() const {
  return weights + gradients + optimizer + activations + copies + stash + logits + workspace;
}

int64_t num_moe_layers(const GptConfig& config) {
  int64_t count = 0;
  for (int64_t layer = 0; layer < config.model.layers; ++layer) {
    count += config.moe.is_moe_layer(layer) ? 1 : 0;
  }
  return count;
}

ParameterCount count_parameters(const GptConfig& config) {
  const ModelConfig& model = config.model;
  const MoeConfig& moe = config.moe;
  const int64_t moe_layers = num_moe_layers(config);
  const int64_t hidden = model.hidden;
  ParameterCount count;
  count.embedding = model.vocab * hidden;
  count.head = model.tie_embeddings ? 0 : model.vocab * hidden;
  // Projections of queries, keys, values, and of the output.
  count.attention = model.layers * hidden * (2 * model.q_width() + 2 * model.kv_width());
  count.dense_mlp = (model.layers - moe_layers) * mlp_parameters(hidden, model.ffn);
  count.experts = moe_layers * moe.experts * mlp_parameters(hidden, moe.ffn);
  count.active_experts = moe_layers * moe.top_k * mlp_parameters(hidden, moe.ffn);
  count.shared_experts =
      moe_layers * (mlp_parameters(hidden, moe.shared_ffn) + (moe.shared_gate ? hidden : 0));
  count.router = moe_layers * moe.experts * hidden;
  int64_t qk_norm = 0;
  if (model.qk_norm == "head") qk_norm = 2 * model.head_dim;
  if (model.qk_norm == "full") qk_norm = model.q_width() + model.kv_width();
  count.norms = model.layers * (2 * hidden + qk_norm) + hidden;
  return count;
}

FlopCount flops_per_token(const GptConfig& config) {
  const ModelConfig& model = config.model;
  const ParameterCount count = count_parameters(config);
  const int64_t matrices = count.attention + count.dense_mlp + count.active_experts +
                           count.shared_experts + count.router + model.vocab * model.hidden;
  FlopCount flops;
  flops.matmul = 6.0 * static_cast<double>(matrices);
  // Scores and their product with the values: 2 * 2 * q_width * seq operations forward, three
  // times that with backward, half of it masked.
  flops.attention = 12.0 * static_cast<double>(model.layers) *
                    static_cast<double>(model.q_width()) * static_cast<double>(model.seq) / 2.0;
  return flops;
}

LayerFlops forward_flops(const GptConfig& config, bool is_moe_layer) {
  const ModelConfig& model = config.model;
  const MoeConfig& moe = config.moe;
  const auto of_matrix = [](int64_t elements) { return 2.0 * static_cast<double>(elements); };
  LayerFlops flops;
  flops.projections = of_matrix(model.hidden * (2 * model.q_width() + 2 * model.kv_width()));
  flops.core_attention = of_matrix(model.q_width() * model.seq);  // two products, half masked
  if (!is_moe_layer) {
    flops.feed_forward = of_matrix(mlp_parameters(model.hidden, model.ffn));
    return flops;
  }
  flops.shared_experts = of_matrix(mlp_parameters(model.hidden, moe.shared_ffn) +
                                   (moe.shared_gate ? model.hidden : 0));
  flops.feed_forward =
      of_matrix(moe.top_k * mlp_parameters(model.hidden, moe.ffn) + moe.experts * model.hidden) +
      flops.shared_experts;
  return flops;
}

PassTimes pass_times(const GptConfig& config, const ModelPart& part, int64_t tokens,
                     const ModuleShares& shares, const GptRecompute& recompute, double flop_per_s) {
  const ModelConfig& model = config.model;
  int64_t whole_layers = 0;  // that are recomputed
  if (recompute.layers == GptRecompute::Layers::Uniform) whole_layers = part.num_layers;
  if (recompute.layers == GptRecompute::Layers::Block) whole_layers = recompute.num_layers;
  double forward = 0, again = 0;
  for (int64_t i = 0; i < part.num_layers; ++i) {
    const bool is_moe = config.moe.is_moe_layer(part.first_layer + i);
    const LayerFlops flops = forward_flops(config, is_moe);
    forward += flops.total();
    if (i < whole_layers) again += flops.total();
    if (recompute.modules.contains(Label::CoreAttn)) again += flops.core_attention;
    const bool all = recompute.modules.contains(is_moe ? Label::Moe : Label::Mlp);
    if (all) again += flops.feed_forward;
    if (!all && recompute.modules.contains(Label::SharedExperts)) again += flops.shared_experts;
  }
  if (part.head) forward += 2.0 * static_cast<double>(model.vocab * model.hidden);
  const double scale =
      static_cast<double>(tokens) / static_cast<double>(shares.tensor) / flop_per_s;
  return {forward * scale, (2 * forward + again) * scale};
}

std::map<Label, ActivationCost> kept_costs(const PassRecords& costs) {
  std::map<size_t, Label> owner;
  std::set<size_t> rebuilt;
  for (const RecordCost& record : costs.records) {
    for (const size_t tensor : record.tensors) owner[tensor] = record.label;
    rebuilt.insert(record.rebuilt.begin(), record.rebuilt.end());
  }
  std::map<Label, ActivationCost> kept;
  for (const auto& [tensor, label] : owner) {
    if (rebuilt.contains(tensor)) continue;
    ActivationCost& cost = kept[label];
    cost.module = name_of(label);
    cost.bytes_per_token += costs.tensors[tensor].bytes();
    cost.name += (cost.name.empty() ? "" : ", ") + std::string(costs.tensors[tensor].name);
  }
  return kept;
}

std::vector<ActivationCost> activation_costs(const GptConfig& config, bool is_moe_layer,
                                             const ModuleShares& shares,
                                             const SavedPolicies& policies) {
  // Of many tokens, so that what ranks share is a whole number of bytes.
  const int64_t tokens = 64 * shares.tensor;
  for (int64_t layer = 0; layer < config.model.layers; ++layer) {
    if (config.moe.is_moe_layer(layer) != is_moe_layer) continue;
    std::vector<ActivationCost> costs;
    for (const auto& [label, cost] :
         kept_costs(pass_records(config, {false, layer, 1, false}, tokens, shares, policies))) {
      costs.push_back(cost);
      costs.back().bytes_per_token /= tokens;
    }
    return costs;
  }
  return {};
}

int64_t logit_bytes(const GptConfig& config, int64_t tokens, const ModuleShares& shares) {
  const DType dtype = dtype_of(config.model.precision);
  const int64_t columns = (config.model.vocab + shares.tensor - 1) / shares.tensor;
  return std::min(tokens, loss_chunk_tokens(columns, dtype)) * columns *
         static_cast<int64_t>(size_of(dtype));
}

int64_t workspace_bytes(const GptConfig& config, int64_t tokens, const ModuleShares& shares) {
  const ModelConfig& model = config.model;
  const MoeConfig& moe = config.moe;
  const auto e = static_cast<int64_t>(size_of(dtype_of(model.precision)));
  const int64_t t = shares.tensor;
  const int64_t moe_layers = num_moe_layers(config);
  // Backward of an MLP holds the gradients of its output, activation, gate and up, and input.
  // Experts hold those of the output with that of the activation, and those of the input with rows
  // of x, if these were gathered or are made again.
  const int64_t row = shares.expert_tensor * model.hidden;
  const int64_t moe_width = moe.top_k * (row + 2 * moe.ffn + std::max(moe.ffn, row)) / t;
  const int64_t dense_width = 2 * model.hidden + 3 * model.ffn / t;
  const int64_t widest =
      std::max(moe_layers > 0 ? moe_width : 0, moe_layers < model.layers ? dense_width : 0);
  return tokens * e * widest + kLibraryBytes;
}

}  // namespace ferry
