#include <algorithm>

#include "core/ops/row_capacity_kernels.h"

namespace ferry::cpu {

void limit_rows(const Tensor& offsets, const Tensor& num_over, const RoutingPlan& plan,
                int64_t capacity) {
  const auto limit = static_cast<int32_t>(capacity);
  const int32_t* whole = plan.offsets.data<int32_t>();
  const int64_t last = offsets.dim(0) - 1;
  for (int64_t e = 0; e <= last; ++e) offsets.data<int32_t>()[e] = std::min(whole[e], limit);
  if (whole[last] > limit) ++*num_over.data<int32_t>();
  const int32_t num_rows = std::min(whole[last], limit);
  int32_t* row_of_slot = plan.row_of_slot.data<int32_t>();
  for (int64_t slot = 0; slot < plan.row_of_slot.dim(0); ++slot)
    if (row_of_slot[slot] >= num_rows) row_of_slot[slot] = kNoRow;
}

}  // namespace ferry::cpu
