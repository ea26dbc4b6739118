#pragma once

// Causal self-attention: one GEMM to queries, keys and values, optional norms of queries and keys,
// rotary positions, grouped-query attention, one GEMM back to the residual width. Tensor-parallel
// ranks have equally many heads each.

#include <memory>
#include <string>

#include "core/module.h"
#include "layers/attention_config.h"
#include "layers/linear.h"
#include "layers/module_decorator.h"
#include "layers/rotary_norm.h"

namespace ferry {

class Attention final : public Module {
 public:
  /// `name`: "layers/7/attention". The rope cache is shared by all layers of a model. `config` is
  /// of the whole layer; the ranks must divide its heads and kv_heads. `decorate` is asked about
  /// Label::CoreAttn: queries, keys and values [T, qkv_width] in, [T, heads*head_dim] out.
  Attention(const std::string& name, const AttentionConfig& config,
            std::shared_ptr<RopeCache> rope_cache, const TensorParallel& tensor = {},
            const ModuleDecorator& decorate = undecorated);

  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void visit(const ParameterVisitor& visitor) override;

 private:
  Linear qkv_;
  RotaryNorm rotary_norm_;
  std::unique_ptr<Module> core_;
  Linear proj_;
};

}  // namespace ferry
