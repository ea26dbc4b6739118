#pragma once

// Column sums, shared by the column_sums op and by kernels that leave one row of partial sums per
// block (weight gradients of norms).

#include "core/stream.h"

namespace ferry::cuda {

/// The most rows of partial sums that such kernels leave: four blocks for each of 132
/// multiprocessors. A constant, so that the order of additions does not depend on the device.
inline constexpr int kPartialRows = 528;

/// sums[c] = (or +=, if `add`) sum of x[r * stride + c] over r in a fixed order. rows may be 0.
void sum_columns(Stream& stream, float* sums, const float* x, int64_t rows, int64_t columns,
                 int64_t stride, bool add);

}  // namespace ferry::cuda
