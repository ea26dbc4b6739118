#pragma once

// Cutting the numbers of a whole tensor into the part that a rank holds, and putting parts
// together.

#include <functional>
#include <vector>

#include "core/placement.h"

namespace ferry::testing {

/// body(index in the whole, index in the part) for each element of the part that is not padding.
inline void for_each_placed(const Placement& part,
                            const std::function<void(size_t, size_t)>& body) {
  const int64_t columns = part.num_columns(), all = matrix_columns(part.global_shape());
  for (const PlacedRows& run : part.runs())
    for (int64_t r = 0; r < run.num_rows; ++r)
      for (int64_t c = 0; c < columns; ++c)
        body(static_cast<size_t>((run.global_row + r) * all + part.first_column() + c),
             static_cast<size_t>((run.row + r) * columns + c));
}

/// The part's elements; padding is zero.
inline std::vector<double> part_of(const std::vector<double>& whole, const Placement& part) {
  std::vector<double> values(static_cast<size_t>(part.num_rows() * part.num_columns()), 0.0);
  for_each_placed(part, [&](size_t global, size_t local) { values[local] = whole.at(global); });
  return values;
}

/// whole += part, where the part lies.
inline void add_part(std::vector<double>& whole, const std::vector<double>& values,
                     const Placement& part) {
  whole.resize(static_cast<size_t>(part.global_shape().numel()));
  for_each_placed(part, [&](size_t global, size_t local) { whole[global] += values.at(local); });
}

}  // namespace ferry::testing
