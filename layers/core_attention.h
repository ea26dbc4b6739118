#pragma once

// The middle of self-attention: from queries, keys and values to the mix of values, see
// core/ops/attention.h.

#include <string>

#include "core/module.h"
#include "layers/attention_config.h"

namespace ferry {

class CoreAttention final : public Module {
 public:
  /// `name`: "layers/7/attention". `config` is of the whole layer; a rank has its heads.
  CoreAttention(const std::string& name, const AttentionConfig& config,
                const TensorParallel& tensor);

  /// [T, heads*head_dim] of this rank from qkv [T, qkv_width], which stays as it is.
  Tensor forward(Pass& pass, const Tensor& qkv) override;
  Tensor backward(Pass& pass, const Tensor& dout) override;
  void visit(const ParameterVisitor&) override {}

 private:
  AttentionDropout dropout(const Pass& pass) const;

  AttentionConfig config_;
  TensorParallel tensor_;
  double scale_;
  uint32_t dropout_site_;
};

}  // namespace ferry
