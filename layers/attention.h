#pragma once

// Causal self-attention: one GEMM to queries, keys and values, optional norms of queries and keys,
// rotary positions, grouped-query attention, one GEMM back to the residual width. Tensor-parallel
// ranks have equally many heads each.

#include <memory>
#include <optional>
#include <string>

#include "core/module.h"
#include "core/ops/qk_norm.h"
#include "layers/linear.h"
#include "layers/rope_cache.h"

namespace ferry {

struct AttentionConfig {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  std::optional<QkNormKind> qk_norm;
  double norm_eps = 1e-5;
  double dropout = 0;  // of attention probabilities
  double init_std = 0.02;
  double output_init_std = 0.02;
  DType dtype = DType::F32;
};

class Attention final : public Module {
 public:
  /// `name`: "layers/7/attention". The rope cache is shared by all layers of a model. `config` is
  /// of the whole layer; the ranks must divide its heads and kv_heads.
  Attention(const std::string& name, const AttentionConfig& config,
            std::shared_ptr<RopeCache> rope_cache, const TensorParallel& tensor = {});

  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void visit(const ParameterVisitor& visitor) override;

 private:
  AttentionDims dims(const Pass& pass) const;  // of this rank's heads
  AttentionDropout dropout(const Pass& pass) const;
  Tensor normalise(Pass& pass, const Tensor& qkv);
  Tensor normalise_backward(Pass& pass, const Tensor& dqkv);

  /// The norm's sums are over heads of several ranks.
  bool norm_crosses_ranks() const;

  AttentionConfig config_;
  TensorParallel tensor_;
  Linear qkv_;
  Linear proj_;
  Parameter q_norm_;
  Parameter k_norm_;
  std::shared_ptr<RopeCache> rope_;
  double scale_;
  uint32_t dropout_site_;
};

}  // namespace ferry
