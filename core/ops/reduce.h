#pragma once

// Sums in a fixed order (deterministic on every device). Results are F32, or F64 where said.

#include "core/tensor.h"

namespace ferry {

/// total [1] F64 += sum of squares of x (any float dtype).
void sum_squares(Stream& stream, const Tensor& total, const Tensor& x);
/// total [1] (accumulate_dtype of x) += sum of squares of x / divisor.
void mean_square(Stream& stream, const Tensor& total, const Tensor& x, double divisor);
/// sums [C] = column sums of x [R, C], both F32 or both F64.
void column_sums(Stream& stream, const Tensor& sums, const Tensor& x);
/// totals [N] += values [N], I64 += I32: token counts per expert over a step.
void accumulate_counts(Stream& stream, const Tensor& totals, const Tensor& values);

}  // namespace ferry
