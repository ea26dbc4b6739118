#pragma once

// The cosines and sines of rotary positions, made once per sequence length and shared by all
// layers.

#include <map>
#include <utility>

#include "core/ops/rope.h"

namespace ferry {

class RopeCache {
 public:
  RopeCache(int64_t head_dim, double theta, DType dtype)
      : head_dim_(head_dim), theta_(theta), dtype_(accumulate_dtype(dtype)) {}

  /// {cosine, sine}, both [seq, head_dim/2]. The first call for a length enqueues their making on
  /// `stream`; all later users must be on that stream or behind it.
  const std::pair<Tensor, Tensor>& get(Stream& stream, int64_t seq);

 private:
  int64_t head_dim_;
  double theta_;
  DType dtype_;
  std::map<int64_t, std::pair<Tensor, Tensor>> tables_;
};

}  // namespace ferry
