#include "core/ops/gemm.h"

#include "core/ops/gemm_kernels.h"
#include "core/ops/run_op.h"

namespace ferry {

void gemm(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a, const Tensor& b,
          Transpose transpose_b, double beta) {
  CHECK(a.defined() && a.shape().rank() == 2 && b.defined() && b.shape().rank() == 2,
        "gemm multiplies matrices, not ", a.shape(), " and ", b.shape());
  const bool flip_a = transpose_a == Transpose::Yes, flip_b = transpose_b == Transpose::Yes;
  const int64_t inner = a.dim(flip_a ? 0 : 1);
  CHECK(b.dim(flip_b ? 1 : 0) == inner, "gemm of ", a.shape(), flip_a ? "^T" : "", " and ",
        b.shape(), flip_b ? "^T" : "");
  CHECK_SHAPE(c, {a.dim(flip_a ? 1 : 0), b.dim(flip_b ? 0 : 1)});
  CHECK(a.dtype() == b.dtype() &&
            (c.dtype() == a.dtype() || c.dtype() == accumulate_dtype(a.dtype())),
        "gemm of ", name_of(a.dtype()), " and ", name_of(b.dtype()), " into ", name_of(c.dtype()));
  CHECK(beta == 0 || (beta == 1 && c.dtype() == accumulate_dtype(a.dtype())), "beta is ", beta,
        " into ", name_of(c.dtype()));
  run_op(stream, cpu::gemm, cuda::gemm, c, a, transpose_a, b, transpose_b, beta);
}

}  // namespace ferry
