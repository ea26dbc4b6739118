#pragma once

// Sums of a few host numbers over ranks.

#include <vector>

#include "core/comm/group.h"

namespace ferry {

/// Replaces every value by its sum over the group. Waits for `stream`, on whose device the values
/// travel. Exact for integers below 2^53.
void sum_over_ranks(std::vector<double>& values, Group& group, Stream& stream);

}  // namespace ferry
