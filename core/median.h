#pragma once

#include <algorithm>
#include <vector>

namespace ferry {

/// The upper one of an even number of values; there must be one at least.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace ferry
