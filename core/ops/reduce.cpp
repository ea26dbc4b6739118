#include "core/ops/reduce.h"

#include "core/ops/reduce_kernels.h"
#include "core/ops/run_op.h"

namespace ferry {

void sum_squares(Stream& stream, const Tensor& total, const Tensor& x) {
  CHECK_SHAPE(total, {1});
  CHECK(total.dtype() == DType::F64, "total is ", name_of(total.dtype()));
  CHECK(x.defined(), "x is undefined");
  run_op(stream, cpu::sum_squares, cuda::sum_squares, total, x);
}

void mean_square(Stream& stream, const Tensor& total, const Tensor& x, double divisor) {
  CHECK_SHAPE(total, {1});
  CHECK(x.defined(), "x is undefined");
  CHECK(total.dtype() == accumulate_dtype(x.dtype()), "total is ", name_of(total.dtype()));
  CHECK(divisor != 0, "divisor is 0");
  run_op(stream, cpu::mean_square, cuda::mean_square, total, x, divisor);
}

void column_sums(Stream& stream, const Tensor& sums, const Tensor& x) {
  CHECK(x.defined() && x.shape().rank() == 2, "x must be [R, C]");
  CHECK_SHAPE(sums, {x.dim(1)});
  CHECK(x.dtype() == DType::F32 || x.dtype() == DType::F64, "x is ", name_of(x.dtype()));
  CHECK(sums.dtype() == x.dtype(), "sums are ", name_of(sums.dtype()));
  run_op(stream, cpu::column_sums, cuda::column_sums, sums, x);
}

void accumulate_counts(Stream& stream, const Tensor& totals, const Tensor& values) {
  CHECK(values.defined() && values.shape().rank() == 1, "values must be [N]");
  CHECK_SHAPE(totals, {values.dim(0)});
  CHECK(totals.dtype() == DType::I64, "totals are ", name_of(totals.dtype()));
  CHECK(values.dtype() == DType::I32, "values are ", name_of(values.dtype()));
  run_op(stream, cpu::accumulate_counts, cuda::accumulate_counts, totals, values);
}

}  // namespace ferry
