#pragma once

// Sums of a few host numbers over ranks.

#include <vector>

#include "core/comm/group.h"

namespace ferry {

/// Replaces every value by its sum over the group. Blocks. Exact for integers below 2^53. The group
/// may be one for device memory: the values then travel through `device`.
void sum_over_ranks(std::vector<double>& values, Group& group, Device& device);

}  // namespace ferry
