#pragma once

// A routing plan for rows tensors of a fixed size, although the number of rows is known on the
// device only.

#include "core/ops/permute.h"

namespace ferry {

/// Cuts the plan off after its first m experts and after `capacity` rows: offsets [m+1] I32, m <=
/// E, are those of the plan, but at most `capacity`; slots whose rows lie beyond offsets[m] get a
/// row_of_slot beyond any tensor, so that combine_rows and gather_scalars leave them out.
/// slot_of_row stays. Adds 1 to num_over [1] I32 if the m experts had more rows than `capacity`.
void limit_rows(Stream& stream, const Tensor& offsets, const Tensor& num_over,
                const RoutingPlan& plan, int64_t capacity);

}  // namespace ferry
