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

int64_t bytes_per_token(const std::vector<ActivationCost>& tensors) {
  int64_t bytes = 0;
  for (const ActivationCost& tensor : tensors) bytes += tensor.bytes_per_token;
  return bytes;
}

}  // namespace

int64_t ParameterCount::total() const {
  return embedding + attention + dense_mlp + experts + shared_experts + router + norms + head;
}

int64_t ParameterCount::active() const { return total() - experts + active_experts; }

int64_t MemoryEstimate::total() const {
  return weights + gradients + optimizer + activations + logits + workspace;
}

int64_t num_moe_layers(const GptConfig& config) {
  int64_t count = 0;
  for (int64_t layer = 0; layer < config.model.layers; ++layer) {
    count += config.moe.is_moe_layer(layer) ? 1 : 0;
  }
  return count;
}

ParameterCount count_parameters(const GptConfig& config) {
  const auto& [model, moe] = config;
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

std::vector<ActivationCost> activation_costs(const GptConfig& config, bool is_moe_layer,
                                             const ModuleShares& shares) {
  const auto& [model, moe] = config;
  const DType dtype = dtype_of(model.precision);
  const auto e = static_cast<int64_t>(size_of(dtype));
  const auto f = static_cast<int64_t>(size_of(accumulate_dtype(dtype)));
  const auto i = static_cast<int64_t>(size_of(DType::I32));
  const int64_t qkv = model.q_width() + 2 * model.kv_width();
  const int64_t t = shares.tensor, copies = shares.expert_tensor;
  const int64_t s = shares.sequence ? t : 1;  // of what is between tensor-parallel regions
  std::vector<ActivationCost> tensors;
  const auto add = [&](Label label, std::string_view name, int64_t bytes) {
    tensors.push_back({name_of(label), name, bytes});
  };
  add(Label::AttnNorm, "input, 1/rms", (e * model.hidden + f) / s);
  add(Label::QkvLinear, "input", e * model.hidden / s);
  if (model.qk_norm != "none") {
    const int64_t groups = model.qk_norm == "full" ? 2 * t : model.heads + model.kv_heads;
    add(Label::QkNorm, "input, 1/rms", (e * qkv + f * groups) / t);
  }
  add(Label::CoreAttn, "q, k, v, logsumexp", (e * qkv + f * model.heads) / t);
  add(Label::AttnProj, "input", e * model.q_width() / t);
  add(Label::MlpNorm, "input, 1/rms", (e * model.hidden + f) / s);
  if (!is_moe_layer) {
    add(Label::Mlp, "input, gate, up, activation", e * (model.hidden / s + 3 * model.ffn / t));
    return tensors;
  }
  // A MoE layer deals out the tokens to the tensor-parallel ranks; its experts' rows go to every
  // rank that shares the expert.
  add(Label::Router, "input, scores, choice", (e * model.hidden + f * (moe.experts + 1)) / t);
  add(Label::Moe, "routing plan", 2 * i * moe.top_k * copies / t);
  add(Label::ExpertFc1, "input rows", e * moe.top_k * copies * model.hidden / t);
  add(Label::MoeAct, "gate, up, probability", moe.top_k * (e * 2 * moe.ffn + copies * (f + i)) / t);
  add(Label::ExpertFc2, "input", e * moe.top_k * moe.ffn / t);
  if (moe.shared_ffn > 0) {
    add(Label::SharedExperts, "gate, up, activation, output",
        e * (3 * moe.shared_ffn + (moe.shared_gate ? model.hidden + 1 : 0)) / t);
  }
  return tensors;
}

int64_t saved_bytes(const GptConfig& config, int64_t first_layer, int64_t num_layers, bool head,
                    int64_t tokens, const ModuleShares& shares) {
  const int64_t moe_layer = bytes_per_token(activation_costs(config, true, shares));
  const int64_t dense_layer = bytes_per_token(activation_costs(config, false, shares));
  int64_t bytes = 0;
  for (int64_t layer = first_layer; layer < first_layer + num_layers; ++layer)
    bytes += config.moe.is_moe_layer(layer) ? moe_layer : dense_layer;
  // The final norm saves its input and the loss the gradient that it begins.
  const auto e = static_cast<int64_t>(size_of(dtype_of(config.model.precision)));
  if (head) bytes += 2 * e * config.model.hidden / (shares.sequence ? shares.tensor : 1);
  return tokens * bytes;
}

int64_t logit_bytes(const GptConfig& config, int64_t tokens, const ModuleShares& shares) {
  const DType dtype = dtype_of(config.model.precision);
  const int64_t columns = (config.model.vocab + shares.tensor - 1) / shares.tensor;
  return std::min(tokens, loss_chunk_tokens(columns, dtype)) * columns *
         static_cast<int64_t>(size_of(dtype));
}

int64_t workspace_bytes(const GptConfig& config, int64_t tokens, const ModuleShares& shares) {
  const auto& [model, moe] = config;
  const auto e = static_cast<int64_t>(size_of(dtype_of(model.precision)));
  const int64_t t = shares.tensor;
  const int64_t moe_layers = num_moe_layers(config);
  // Backward of an MLP holds the gradients of its output, activation, gate and up, and input.
  const int64_t moe_width = moe.top_k * (2 * shares.expert_tensor * model.hidden + 3 * moe.ffn) / t;
  const int64_t dense_width = 2 * model.hidden + 3 * model.ffn / t;
  const int64_t widest =
      std::max(moe_layers > 0 ? moe_width : 0, moe_layers < model.layers ? dense_width : 0);
  return tokens * e * widest + kLibraryBytes;
}

}  // namespace ferry
