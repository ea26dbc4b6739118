#pragma once

// What the parts of self-attention know of their layer.

#include <optional>

#include "core/ops/qk_norm.h"
#include "core/pass.h"
#include "layers/tensor_parallel.h"

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
  bool deterministic = true;  // backward adds in an order of its own, see core/ops/attention.h
};

/// Of this rank's heads of `config`, which is of the whole layer.
inline AttentionDims dims_of_rank(const AttentionConfig& config, const TensorParallel& tensor,
                                  const Batch& batch) {
  return {batch.batch, batch.seq, config.heads / tensor.size, config.kv_heads / tensor.size,
          config.head_dim};
}

}  // namespace ferry
