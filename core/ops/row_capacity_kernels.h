#pragma once

// The two backends of row_capacity.h. Arguments are already checked.

#include <cstdint>
#include <limits>

#include "core/ops/row_capacity.h"

namespace ferry {

/// The row_of_slot of a slot without a row.
inline constexpr int32_t kNoRow = std::numeric_limits<int32_t>::max();

}  // namespace ferry

namespace ferry::cpu {

void limit_rows(const Tensor& offsets, const Tensor& num_over, const RoutingPlan& plan,
                int64_t capacity);

}  // namespace ferry::cpu

namespace ferry::cuda {

void limit_rows(Stream& stream, const Tensor& offsets, const Tensor& num_over,
                const RoutingPlan& plan, int64_t capacity);

}  // namespace ferry::cuda
