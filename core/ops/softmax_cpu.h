#pragma once

// Softmax of one row, in two steps that attention and cross-entropy share.

#include <cstdint>

#include "core/ops/vector_math_cpu.h"

namespace ferry::cpu {

/// The largest of n > 0 values. NaN may be passed over.
template <class S>
S largest_of(const S* __restrict row, int64_t n) {
  constexpr int kLanes = 16;
  S lanes[kLanes];
  for (S& lane : lanes) lane = row[0];
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane)
      lanes[lane] = row[i + lane] > lanes[lane] ? row[i + lane] : lanes[lane];
  }
  for (; i < n; ++i) lanes[0] = row[i] > lanes[0] ? row[i] : lanes[0];
  S largest = lanes[0];
  for (const S lane : lanes) largest = lane > largest ? lane : largest;
  return largest;
}

template <class S>
struct SoftmaxSum {
  S largest;
  S sum;  // of exp(row[i] - largest), at least 1
};

/// Replaces row[i] by exp(row[i] - largest). A NaN in the row makes the sum NaN.
template <class S>
SoftmaxSum<S> exponentials(S* __restrict row, int64_t n) {
  const S largest = largest_of(row, n);
  for (int64_t i = 0; i < n; ++i) row[i] = fast_exp(row[i] - largest);
  return {largest, lane_sum<S>(n, [&](int64_t i) { return row[i]; })};
}

}  // namespace ferry::cpu
