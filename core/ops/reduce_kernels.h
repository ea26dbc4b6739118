#pragma once

// The two backends of reduce.h. Arguments are already checked.

#include "core/ops/reduce.h"

namespace ferry::cpu {

void sum_squares(const Tensor& total, const Tensor& x);
void mean_square(const Tensor& total, const Tensor& x, double divisor);
void column_sums(const Tensor& sums, const Tensor& x);
void accumulate_counts(const Tensor& totals, const Tensor& values);

}  // namespace ferry::cpu

namespace ferry::cuda {

void sum_squares(Stream& stream, const Tensor& total, const Tensor& x);
void mean_square(Stream& stream, const Tensor& total, const Tensor& x, double divisor);
void column_sums(Stream& stream, const Tensor& sums, const Tensor& x);
void accumulate_counts(Stream& stream, const Tensor& totals, const Tensor& values);

}  // namespace ferry::cuda
