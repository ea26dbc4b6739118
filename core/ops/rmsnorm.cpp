#include "core/ops/rmsnorm.h"

#include "core/ops/rmsnorm_kernels.h"
#include "core/ops/run_op.h"

namespace ferry {
namespace {

// x is [T, D]; weight [D] goes with it and rstd [T] holds its statistics.
void check_norm(const Tensor& x, const Tensor& rstd, const Tensor& weight) {
  CHECK(x.shape().rank() == 2 && x.dim(1) > 0, "x has shape ", x.shape());
  CHECK_SHAPE(rstd, {x.dim(0)});
  CHECK_SHAPE(weight, {x.dim(1)});
  CHECK(weight.dtype() == x.dtype(), "weight is ", name_of(weight.dtype()));
  CHECK(rstd.dtype() == accumulate_dtype(x.dtype()), "rstd is ", name_of(rstd.dtype()));
}

void check_like(const Tensor& tensor, const Tensor& x) {
  CHECK_SHAPE(tensor, {x.dim(0), x.dim(1)});
  CHECK(tensor.dtype() == x.dtype(), name_of(tensor.dtype()), " beside x of ", name_of(x.dtype()));
}

}  // namespace

void rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& rstd, const Tensor& x,
                     const Tensor& weight, double eps) {
  check_norm(x, rstd, weight);
  check_like(y, x);
  run_op(stream, cpu::rmsnorm_forward, cuda::rmsnorm_forward, y, rstd, x, weight, eps);
}

void add_rmsnorm_forward(Stream& stream, const Tensor& sum, const Tensor& y, const Tensor& rstd,
                         const Tensor& x, const Tensor& residual, const Tensor& weight,
                         double eps) {
  check_norm(x, rstd, weight);
  check_like(sum, x);
  check_like(y, x);
  check_like(residual, x);
  CHECK(!y.same_memory(sum), "y is the memory of sum");
  run_op(stream, cpu::add_rmsnorm_forward, cuda::add_rmsnorm_forward, sum, y, rstd, x, residual,
         weight, eps);
}

void rmsnorm_backward(Stream& stream, const Tensor& dx, const Tensor& dweight, const Tensor& dy,
                      const Tensor& x, const Tensor& rstd, const Tensor& weight,
                      const Tensor& dresidual) {
  check_norm(x, rstd, weight);
  check_like(dx, x);
  check_like(dy, x);
  if (dresidual.defined()) check_like(dresidual, x);
  CHECK_SHAPE(dweight, {x.dim(1)});
  CHECK(dweight.dtype() == accumulate_dtype(x.dtype()), "dweight is ", name_of(dweight.dtype()));
  CHECK(!dx.same_memory(x), "dx is the memory of x");
  run_op(stream, cpu::rmsnorm_backward, cuda::rmsnorm_backward, dx, dweight, dy, x, rstd, weight,
         dresidual);
}

}  // namespace ferry
