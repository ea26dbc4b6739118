#pragma once

// What queries and keys go through between their projection and attention: norms, where the model
// has them, then rotary positions. Values pass unchanged. See core/ops/qk_norm.h and rope.h.
//
// With norms the result can be rebuilt from the projection, so a policy that discards `layernorm`
// keeps no memory for it. Without, the rotation is in place and nothing is saved.

#include <memory>
#include <string>

#include "core/module.h"
#include "layers/attention_config.h"
#include "layers/rope_cache.h"

namespace ferry {

class RotaryNorm final : public Module {
 public:
  /// `name`: "layers/7/attention". `config` is of the whole layer; a rank has its heads.
  RotaryNorm(const std::string& name, const AttentionConfig& config,
             std::shared_ptr<RopeCache> rope_cache, const TensorParallel& tensor);

  /// qkv [T, qkv_width] of this rank. May write to it and return it.
  Tensor forward(Pass& pass, const Tensor& qkv) override;
  /// May write to dqkv and return it.
  Tensor backward(Pass& pass, const Tensor& dqkv) override;
  void visit(const ParameterVisitor& visitor) override;

 private:
  /// The norm's sums are over heads of several ranks.
  bool crosses_ranks() const;
  Tensor norm_backward(Pass& pass, const Tensor& dqkv);

  AttentionConfig config_;
  TensorParallel tensor_;
  std::shared_ptr<RopeCache> rope_;
  Parameter q_norm_;  // without norms: not used
  Parameter k_norm_;
};

}  // namespace ferry
