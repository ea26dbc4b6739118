#include "layers/attention.h"

#include <cmath>

#include "layers/init.h"

namespace ferry {

Attention::Attention(const std::string& name, const AttentionConfig& config,
                     std::shared_ptr<RopeCache> rope_cache, const TensorParallel& tensor)
    : config_(config),
      tensor_(tensor),
      qkv_(name + "/qkv", config.hidden, (config.heads + 2 * config.kv_heads) * config.head_dim,
           config.dtype, Init::normal(config.init_std), Label::QkvLinear),
      proj_(name + "/proj", config.heads * config.head_dim, config.hidden, config.dtype,
            Init::normal(config.output_init_std), Label::AttnProj),
      rope_(std::move(rope_cache)),
      scale_(1.0 / std::sqrt(static_cast<double>(config.head_dim))),
      dropout_site_(random_site(name + "/dropout")) {
  CHECK(config_.heads % tensor_.size == 0 && config_.kv_heads % tensor_.size == 0, name, ": ",
        tensor_.size, " tensor-parallel ranks do not divide ", config_.heads, " heads and ",
        config_.kv_heads, " kv heads");
  const int64_t q_width = config_.heads * config_.head_dim;
  const int64_t kv_width = config_.kv_heads * config_.head_dim;
  qkv_.cut_outputs(tensor_, {q_width, kv_width, kv_width});
  proj_.cut_inputs(tensor_);
  if (!config_.qk_norm) return;
  const bool full = *config_.qk_norm == QkNormKind::Full;
  const auto make = [&](Parameter& weight, const char* which, int64_t width) {
    weight.name = name + which;
    weight.shape = {full ? width : config_.head_dim};
    weight.dtype = config_.dtype;
    weight.init = Init::ones();
    weight.decay = false;
    if (full)
      cut_rows(weight, std::span(&width, 1), tensor_.rank, tensor_.size);
    else
      tensor_.replicate_inside(weight);
  };
  make(q_norm_, "/q_norm/weight", q_width);
  make(k_norm_, "/k_norm/weight", kv_width);
}

AttentionDims Attention::dims(const Pass& pass) const {
  return {pass.batch.batch, pass.batch.seq, config_.heads / tensor_.size,
          config_.kv_heads / tensor_.size, config_.head_dim};
}

AttentionDropout Attention::dropout(const Pass& pass) const {
  return {pass.training ? config_.dropout : 0.0, pass.key.at_site(dropout_site_),
          pass.batch.first_token / pass.batch.seq, tensor_.rank * (config_.heads / tensor_.size),
          config_.heads};
}

bool Attention::norm_crosses_ranks() const {
  return tensor_.size > 1 && *config_.qk_norm == QkNormKind::Full;
}

Tensor Attention::forward(Pass& pass, const Tensor& x) {
  const AttentionDims d = dims(pass);
  Tensor qkv = qkv_.forward(pass, x);
  if (config_.qk_norm) qkv = normalise(pass, qkv);
  const auto& [cosine, sine] = rope_->get(pass.stream, d.seq);
  rope(pass.stream, qkv, qkv, cosine, sine, d, Rotation::Forward);

  const DType statistics = accumulate_dtype(x.dtype());
  const Tensor out = Tensor::empty(pass.stream, "core_attn", {d.tokens(), d.q_width()}, x.dtype());
  const Tensor lse =
      Tensor::empty(pass.stream, "statistics", {d.batch, d.heads, d.seq}, statistics);
  attention_forward(pass.stream, out, lse, qkv, d, scale_, dropout(pass));
  pass.tape().save(pass.stream, Label::CoreAttn, {qkv, out, lse});
  return proj_.forward(pass, out);
}

Tensor Attention::backward(Pass& pass, const Tensor& dy) {
  const AttentionDims d = dims(pass);
  const Tensor dout = proj_.backward(pass, dy);
  const auto [qkv, out, lse] = pass.tape().load<3>(pass.stream, Label::CoreAttn);
  const Tensor dqkv = Tensor::empty(pass.stream, "gradients", qkv.shape(), qkv.dtype());
  attention_backward(pass.stream, dqkv, dout, out, lse, qkv, d, scale_, dropout(pass));
  const auto& [cosine, sine] = rope_->get(pass.stream, d.seq);
  rope(pass.stream, dqkv, dqkv, cosine, sine, d, Rotation::Backward);
  if (config_.qk_norm) return qkv_.backward(pass, normalise_backward(pass, dqkv));
  return qkv_.backward(pass, dqkv);
}

Tensor Attention::normalise(Pass& pass, const Tensor& qkv) {
  Stream& stream = pass.stream;
  const AttentionDims d = dims(pass);
  const int64_t groups = *config_.qk_norm == QkNormKind::Full ? 2 : d.heads + d.kv_heads;
  const DType statistics = accumulate_dtype(qkv.dtype());
  const Tensor y = Tensor::empty(stream, "qk_norm", qkv.shape(), qkv.dtype());
  const Tensor rstd = Tensor::empty(stream, "statistics", {qkv.dim(0), groups}, statistics);
  if (norm_crosses_ranks()) {
    const Tensor sums = Tensor::empty(stream, "statistics", {qkv.dim(0), 2}, statistics);
    qk_norm_squares(stream, sums, qkv, d);
    tensor_.group->all_reduce(stream, sums, ReduceOp::Sum);
    qk_norm_apply(stream, y, rstd, qkv, sums, q_norm_.value, k_norm_.value, d, tensor_.size,
                  config_.norm_eps);
  } else {
    qk_norm_forward(stream, y, rstd, qkv, q_norm_.value, k_norm_.value, d, *config_.qk_norm,
                    config_.norm_eps);
  }
  pass.tape().save(stream, Label::QkNorm, {qkv, rstd});
  return y;
}

Tensor Attention::normalise_backward(Pass& pass, const Tensor& dqkv) {
  Stream& stream = pass.stream;
  const AttentionDims d = dims(pass);
  const auto [qkv, rstd] = pass.tape().load<2>(stream, Label::QkNorm);
  if (norm_crosses_ranks()) {
    const Tensor sums = Tensor::empty(stream, "statistics", rstd.shape(), rstd.dtype());
    qk_norm_products(stream, sums, dqkv, qkv, q_norm_.value, k_norm_.value, d);
    tensor_.group->all_reduce(stream, sums, ReduceOp::Sum);
    qk_norm_apply_backward(stream, dqkv, q_norm_.grad, k_norm_.grad, dqkv, qkv, rstd, sums,
                           q_norm_.value, k_norm_.value, d, tensor_.size);
  } else {
    qk_norm_backward(stream, dqkv, q_norm_.grad, k_norm_.grad, dqkv, qkv, rstd, q_norm_.value,
                     k_norm_.value, d, *config_.qk_norm);
  }
  return dqkv;
}

void Attention::visit(const ParameterVisitor& visitor) {
  qkv_.visit(visitor);
  if (config_.qk_norm) {
    visitor(q_norm_);
    visitor(k_norm_);
  }
  proj_.visit(visitor);
}

}  // namespace ferry
