#pragma once

// A few numbers of a step: brought to the host, and summed over ranks.

#include <string>
#include <vector>

#include "core/comm/group.h"
#include "core/pass.h"

namespace ferry {

/// The step total `name` of one number, 0 if this rank has none. Waits for `stream`.
double read_total(Stream& stream, const StepTotals& totals, const std::string& name);

/// Replaces every value by its sum over the group. Waits for `stream`, on whose device the values
/// travel. Exact for integers below 2^53.
void sum_over_ranks(std::vector<double>& values, Group& group, Stream& stream);

}  // namespace ferry
