#include "app/megatron_estimate.h"

#include <algorithm>

namespace ferry {
namespace {

double real(int64_t value) { return static_cast<double>(value); }

// Parameters by the way in which ranks share them.
struct Sharing {
  double tensor = 0;      // over tensor-parallel ranks: attention, dense MLP, shared experts
  double replicated = 0;  // norms, router, latent projections, gate
  double routed = 0;      // over expert-parallel ranks
  double active = 0;      // the part of `routed` that a token uses
};

Sharing& operator+=(Sharing& sum, const Sharing& other) {
  sum.tensor += other.tensor;
  sum.replicated += other.replicated;
  sum.routed += other.routed;
  sum.active += other.active;
  return sum;
}

double attention_parameters(const MegatronModel& m) {
  const double h = real(m.hidden), a = real(m.heads);
  if (!m.mla) return 2 * h * h * (1 + real(m.kv_heads) / a) * (a * real(m.head_dim) / h);
  const double n = real(m.norm_parts), dqk = real(m.qk_nope), rope = real(m.qk_rope);
  const double rq = real(m.q_rank), rkv = real(m.kv_rank), dv = real(m.v_dim);
  const double q = rq == 0 ? h * a * (dqk + rope) : rq * (h + a * (dqk + rope) + n);
  return q + rkv * (h + a * (dqk + dv) + n) + h * rope + a * dv * h;
}

Sharing layer_parameters(const MegatronModel& m, bool is_moe) {
  const double h = real(m.hidden), g = m.gated ? 1.5 : 1.0;
  Sharing layer;
  layer.tensor = attention_parameters(m);
  layer.replicated = 2 * h * real(m.norm_parts);
  if (!is_moe) {
    layer.tensor += 2 * h * real(m.ffn) * g;
    return layer;
  }
  const double expert_width = m.latent > 0 ? real(m.latent) : h;
  layer.tensor += 2 * h * real(m.shared_ffn) * g;
  layer.replicated += h * real(m.experts) + 2 * h * real(m.latent);
  if (m.shared_ffn > 0 && m.shared_gate) layer.replicated += h;
  layer.routed = 2 * expert_width * real(m.moe_ffn) * real(m.experts) * g;
  layer.active = 2 * expert_width * real(m.moe_ffn) * real(m.top_k) * g;
  return layer;
}

// Weight, gradient and optimizer state of a parameter that `copies` ranks hold.
double bytes_of_parameter(bool distributed, double copies) {
  return distributed ? 6 + 12 / copies : 18;
}

double activation_bytes(const MegatronModel& m, const MegatronLayout& l) {
  const double h = real(m.hidden), t = real(l.tensor), pp = real(l.pipeline);
  const double sb = real(l.seq) * real(l.micro_batch);
  const double layers = real(std::ssize(m.is_moe));
  const bool sharded = l.sequence && l.selective_recompute;
  const double per_layer = sharded ? 18 + 4 * real(m.ffn) / h : 10 + 24 / t;
  // The input of the first stage, and of the embedding's dropout, of every micro-batch in flight.
  double bytes = sb * h * per_layer * layers + 8 * sb * pp + sb * h * pp;
  if (l.virtual_stages > 1)
    bytes *= 1 + (pp - 1) / (pp * real(l.virtual_stages));
  else if (l.pipeline > 1)
    bytes *= std::min(1.0, real(l.num_micro) / pp);
  const double vocab = real(m.vocab);
  if (sharded) {
    if (l.pipeline == 1) bytes += 4 * sb * h * (1 + vocab / h);
    return bytes / t;
  }
  if (l.pipeline == 1) bytes += 2 * (sb * vocab / t + sb * h);
  return bytes * 1.05;  // the estimator's margin for this case
}

}  // namespace

MegatronEstimate megatron_estimate(const MegatronModel& m, const MegatronLayout& l) {
  const double h = real(m.hidden);
  Sharing layers, extra;
  for (const bool is_moe : m.is_moe) layers += layer_parameters(m, is_moe);
  for (int64_t i = 0; i < m.extra_layers; ++i) extra += layer_parameters(m, m.is_moe.back());
  layers.replicated += real(m.norm_parts) * h;  // the final norm

  const double embedding = h * real(m.vocab);
  const double dense = layers.tensor + layers.replicated + extra.tensor + extra.replicated +
                       embedding * (m.untied ? 2 : 1);
  MegatronEstimate estimate;
  estimate.parameters = dense + layers.routed + extra.routed;
  estimate.active_parameters = dense + layers.active + extra.active;

  const double pp = real(l.pipeline), t = real(l.tensor);
  const double experts_share = real(l.expert_tensor * l.expert);
  double shared = (layers.tensor / pp + extra.tensor + embedding) / t + layers.replicated / pp +
                  extra.replicated;
  if (m.untied && l.pipeline == 1) shared += embedding / t;
  const double routed = (layers.routed / pp + extra.routed) / experts_share;
  estimate.weights_and_optimizer =
      shared * bytes_of_parameter(l.distributed_optimizer, real(l.world) / (t * pp)) +
      routed * bytes_of_parameter(l.distributed_optimizer, real(l.world) / (experts_share * pp));
  estimate.activations = activation_bytes(m, l);
  return estimate;
}

MegatronEstimate megatron_estimate(const RunConfig& config, int64_t ranks) {
  const ModelConfig& model = config.model;
  const MoeConfig& moe = config.moe;
  const ParallelTable& parallel = config.parallel;
  MegatronModel m;
  m.hidden = model.hidden;
  m.heads = model.heads;
  m.kv_heads = model.kv_heads;
  m.head_dim = model.head_dim;
  m.ffn = model.ffn;
  m.moe_ffn = moe.ffn;
  m.shared_ffn = moe.shared_ffn;
  m.experts = moe.experts;
  m.top_k = moe.top_k;
  m.shared_gate = moe.shared_gate;
  const int64_t multiple = 128 * parallel.tensor;
  m.vocab = (model.vocab + multiple - 1) / multiple * multiple;
  m.untied = !model.tie_embeddings;
  for (int64_t layer = 0; layer < model.layers; ++layer)
    m.is_moe.push_back(moe.is_moe_layer(layer));
  m.mla = model.attention == "mla";
  m.q_rank = model.mla.q_lora_rank;
  m.kv_rank = model.mla.kv_lora_rank;
  m.qk_nope = model.mla.qk_nope_dim;
  m.qk_rope = model.mla.qk_rope_dim;
  m.v_dim = model.mla.v_head_dim;

  MegatronLayout l;
  l.world = ranks;
  l.tensor = parallel.tensor;
  l.pipeline = parallel.pipeline;
  l.expert = parallel.expert;
  l.expert_tensor = parallel.expert_tensor;
  l.virtual_stages = config.virtual_stages();
  l.seq = model.seq;
  l.micro_batch = config.batch.micro;
  l.num_micro = config.num_microbatches(ranks);
  l.sequence = parallel.sequence;
  l.selective_recompute = config.recompute.granularity == "selective";
  l.distributed_optimizer = config.optimizer.distributed;
  return megatron_estimate(m, l);
}

double dense_layer_bytes(double s, double b, double h, double a, double tensor,
                         LayerRecompute recompute) {
  const double of_width = s * b * h / tensor;
  if (recompute == LayerRecompute::Full) return 2 * of_width;
  if (recompute == LayerRecompute::Selective) return 34 * of_width;
  return (34 + 5 * a * s / h) * of_width;
}

}  // namespace ferry
