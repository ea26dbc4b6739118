#include "layers/rotary_norm.h"

#include <utility>

#include "layers/init.h"

namespace ferry {
namespace {

// What it takes to go from a projection to attention's input: in forward, and again where that was
// discarded.
struct Steps {
  Tensor q_weight, k_weight, cosine, sine;
  AttentionDims dims;
  QkNormKind kind;
  double eps;
  int64_t parts;  // ranks whose sums are added; 1: the norm makes its own

  // {y, rstd}; `sums` are those of all ranks, undefined with one part.
  std::pair<Tensor, Tensor> run(Stream& stream, const Tensor& qkv, const Tensor& sums) const {
    const Tensor y = Tensor::empty(stream, "qk_norm", qkv.shape(), qkv.dtype());
    const int64_t groups = kind == QkNormKind::Full ? 2 : dims.heads + dims.kv_heads;
    const Tensor rstd =
        Tensor::empty(stream, "statistics", {qkv.dim(0), groups}, accumulate_dtype(qkv.dtype()));
    if (parts > 1)
      qk_norm_apply(stream, y, rstd, qkv, sums, q_weight, k_weight, dims, parts, eps);
    else
      qk_norm_forward(stream, y, rstd, qkv, q_weight, k_weight, dims, kind, eps);
    rope(stream, y, y, cosine, sine, dims, Rotation::Forward);
    return {y, rstd};
  }
};

}  // namespace

RotaryNorm::RotaryNorm(const std::string& name, const AttentionConfig& config,
                       std::shared_ptr<RopeCache> rope_cache, const TensorParallel& tensor)
    : config_(config), tensor_(tensor), rope_(std::move(rope_cache)) {
  CHECK(config_.heads % tensor_.size == 0 && config_.kv_heads % tensor_.size == 0, name, ": ",
        tensor_.size, " tensor-parallel ranks do not divide ", config_.heads, " heads and ",
        config_.kv_heads, " kv heads");
  if (!config_.qk_norm) return;
  const bool full = *config_.qk_norm == QkNormKind::Full;
  const auto make = [&](Parameter& weight, const char* which, int64_t heads) {
    const int64_t width = heads * config_.head_dim;
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
  make(q_norm_, "/q_norm/weight", config_.heads);
  make(k_norm_, "/k_norm/weight", config_.kv_heads);
}

bool RotaryNorm::crosses_ranks() const {
  return tensor_.size > 1 && *config_.qk_norm == QkNormKind::Full;
}

Tensor RotaryNorm::forward(Pass& pass, const Tensor& qkv) {
  Stream& stream = pass.stream;
  const AttentionDims d = dims_of_rank(config_, tensor_, pass.batch);
  const auto& [cosine, sine] = rope_->get(stream, d.seq);
  if (!config_.qk_norm) {
    rope(stream, qkv, qkv, cosine, sine, d, Rotation::Forward);
    return qkv;
  }
  Tensor sums;
  if (crosses_ranks()) {
    sums = Tensor::empty(stream, "statistics", {qkv.dim(0), 2}, accumulate_dtype(qkv.dtype()));
    qk_norm_squares(stream, sums, qkv, d);
    tensor_.group->all_reduce(stream, sums, ReduceOp::Sum);
  }
  const Steps steps{q_norm_.value,
                    k_norm_.value,
                    cosine,
                    sine,
                    d,
                    *config_.qk_norm,
                    config_.norm_eps,
                    crosses_ranks() ? tensor_.size : 1};
  const auto [y, rstd] = steps.run(stream, qkv, sums);
  // The sums are saved so that ranks can rebuild without each other.
  pass.tape().save(stream, Label::QkNorm, {qkv, rstd, sums});
  pass.tape().save_rebuildable(Label::Layernorm, y, {qkv, sums},
                               [steps](Stream& on, std::span<const Tensor> inputs) {
                                 return steps.run(on, inputs[0], inputs[1]).first;
                               });
  return y;
}

Tensor RotaryNorm::backward(Pass& pass, const Tensor& dqkv) {
  const AttentionDims d = dims_of_rank(config_, tensor_, pass.batch);
  const auto& [cosine, sine] = rope_->get(pass.stream, d.seq);
  rope(pass.stream, dqkv, dqkv, cosine, sine, d, Rotation::Backward);
  return config_.qk_norm ? norm_backward(pass, dqkv) : dqkv;
}

Tensor RotaryNorm::norm_backward(Pass& pass, const Tensor& dqkv) {
  Stream& stream = pass.stream;
  const AttentionDims d = dims_of_rank(config_, tensor_, pass.batch);
  const auto [qkv, rstd, squares] = pass.tape().load<3>(stream, Label::QkNorm);
  if (crosses_ranks()) {
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

void RotaryNorm::visit(const ParameterVisitor& visitor) {
  if (!config_.qk_norm) return;
  visitor(q_norm_);
  visitor(k_norm_);
}

}  // namespace ferry
