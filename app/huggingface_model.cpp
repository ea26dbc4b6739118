#include "app/huggingface_model.h"

#include <fmt/format.h>

#include <vector>

#include "core/check.h"

namespace ferry {

ModelDescription describe_model(const RunConfig& config) {
  const ModelConfig& model = config.model;
  const MoeConfig& moe = config.moe;
  const RouterConfig& router = moe.router;
  std::string reasons;
  const auto refuse = [&](bool condition, const std::string& reason) {
    if (condition) reasons += "\n  why : " + reason;
  };
  refuse(model.attention != "gqa", "model.attention = " + model.attention +
                                       ": the architectures have grouped-query attention");
  refuse(model.precision == "fp64", "model.precision = fp64: weights there are BF16 or F32");
  refuse(moe.shared_ffn > 0, "moe.shared_ffn: the architectures have no shared experts");
  refuse(router.score != "softmax",
         "moe.router.score = " + router.score + ": the architectures use softmax");
  refuse(router.bias_rate > 0, "moe.router.bias_rate: the architectures have no router bias");
  refuse(router.groups > 0, "moe.router.groups: the architectures do not limit groups of experts");
  refuse(router.scaling_factor != 1.0,
         "moe.router.scaling_factor: the architectures do not scale probabilities");
  refuse(moe.capacity_factor.has_value(), "moe.capacity_factor: the architectures drop no tokens");
  if (!reasons.empty())
    fail(ExitCode::Usage, "error: no supported Hugging Face architecture can express this model",
         reasons, "\n  try : docs/huggingface.md lists what each architecture has");

  ModelDescription described;
  described.layers = model.layers;
  described.hidden = model.hidden;
  described.heads = model.heads;
  described.kv_heads = model.kv_heads;
  described.head_dim = model.head_dim;
  described.vocab = model.vocab;
  described.seq = model.seq;
  described.dense_ffn = model.ffn;
  described.experts = moe.experts;
  described.top_k = moe.top_k;
  described.expert_ffn = moe.ffn;
  for (int64_t layer = 0; layer < model.layers; ++layer)
    described.is_moe_layer.push_back(moe.is_moe_layer(layer));
  described.qk_norm = model.qk_norm;
  described.renormalise = !router.pre_softmax;
  described.tie_embeddings = model.tie_embeddings;
  described.norm_eps = model.norm_eps;
  described.rope_theta = model.rope_theta;
  described.init_std = model.init_std;
  described.attention_dropout = model.attention_dropout;
  described.aux_coeff = router.coefficient("aux_loss");
  described.jitter = router.jitter;
  family_of(described);
  return described;
}

std::string model_toml(const HfConfig& config) {
  const ModelDescription& model = config.model;
  std::vector<int> layers(model.is_moe_layer.begin(), model.is_moe_layer.end());
  return fmt::format(
      "# Made by ferry import hf. [run], [batch], [optimizer] and [data] are only examples.\n\n"
      "[run]\nsteps = 1000\n\n"
      "[model]\nlayers = {}\nhidden = {}\nheads = {}\nkv_heads = {}\nhead_dim = {}\nffn = {}\n"
      "vocab = {}\nseq = {}\nnorm_eps = {}\nrope_theta = {}\nqk_norm = \"{}\"\n"
      "tie_embeddings = {}\ninit_std = {}\nattention_dropout = {}\nprecision = \"{}\"\n\n"
      "[moe]\nexperts = {}\ntop_k = {}\nffn = {}\nlayer_freq = [{}]\n\n"
      "[moe.router]\npre_softmax = {}\nbalance = \"aux_loss\"\naux_coeff = {}\njitter = {}\n\n"
      "[batch]\nmicro = 1\n\n[optimizer]\nlr = 1e-5\n\n[data]\ntrain = [\"data/train\"]\n",
      model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim, model.dense_ffn,
      model.vocab, model.seq, model.norm_eps, model.rope_theta, model.qk_norm, model.tie_embeddings,
      model.init_std, model.attention_dropout, config.precision, model.experts, model.top_k,
      model.expert_ffn, fmt::join(layers, ", "), !model.renormalise, model.aux_coeff, model.jitter);
}

}  // namespace ferry
