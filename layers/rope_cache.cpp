#include "layers/rope_cache.h"

namespace ferry {

const std::pair<Tensor, Tensor>& RopeCache::get(Stream& stream, int64_t seq) {
  auto found = tables_.find(seq);
  if (found == tables_.end()) {
    const Shape shape{seq, head_dim_ / 2};
    std::pair<Tensor, Tensor> table{Tensor::empty(stream, "rope table", shape, dtype_),
                                    Tensor::empty(stream, "rope table", shape, dtype_)};
    rope_table(stream, table.first, table.second, theta_);
    found = tables_.emplace(seq, std::move(table)).first;
  }
  return found->second;
}

}  // namespace ferry
