#include "layers/core_attention.h"

#include <cmath>

#include "layers/init.h"

namespace ferry {

CoreAttention::CoreAttention(const std::string& name, const AttentionConfig& config,
                             const TensorParallel& tensor)
    : config_(config),
      tensor_(tensor),
      scale_(1.0 / std::sqrt(static_cast<double>(config.head_dim))),
      dropout_site_(random_site(name + "/dropout")) {}

AttentionDropout CoreAttention::dropout(const Pass& pass) const {
  return {pass.training ? config_.dropout : 0.0, pass.key.at_site(dropout_site_),
          pass.batch.first_token / pass.batch.seq, tensor_.rank * (config_.heads / tensor_.size),
          config_.heads};
}

Tensor CoreAttention::forward(Pass& pass, const Tensor& qkv) {
  Stream& stream = pass.stream;
  const AttentionDims d = dims_of_rank(config_, tensor_, pass.batch);
  const Tensor out = Tensor::empty(stream, "core_attn", {d.tokens(), d.q_width()}, qkv.dtype());
  const Tensor lse =
      Tensor::empty(stream, "statistics", {d.batch, d.heads, d.seq}, accumulate_dtype(qkv.dtype()));
  attention_forward(stream, out, lse, qkv, d, scale_, dropout(pass));
  pass.tape().save(stream, Label::CoreAttn, {qkv, out, lse});
  return out;
}

Tensor CoreAttention::backward(Pass& pass, const Tensor& dout) {
  const AttentionDims d = dims_of_rank(config_, tensor_, pass.batch);
  const auto [qkv, out, lse] = pass.tape().load<3>(pass.stream, Label::CoreAttn);
  const Tensor dqkv = Tensor::empty(pass.stream, "gradients", qkv.shape(), qkv.dtype());
  attention_backward(pass.stream, dqkv, dout, out, lse, qkv, d, scale_, dropout(pass),
                     config_.deterministic);
  return dqkv;
}

}  // namespace ferry
