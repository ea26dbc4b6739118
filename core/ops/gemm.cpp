#include "core/ops/gemm.h"

#include "core/ops/gemm_kernels.h"
#include "core/ops/run_op.h"

namespace ferry {
namespace {

// The last two dims of each tensor are its matrices.
void check_product(const char* op, const Tensor& c, const Tensor& a, Transpose transpose_a,
                   const Tensor& b, Transpose transpose_b, double beta) {
  const bool flip_a = transpose_a == Transpose::Yes, flip_b = transpose_b == Transpose::Yes;
  const int64_t inner = a.dim(flip_a ? -2 : -1);
  CHECK(b.dim(flip_b ? -1 : -2) == inner, op, " of ", a.shape(), flip_a ? "^T" : "", " and ",
        b.shape(), flip_b ? "^T" : "");
  CHECK(a.dtype() == b.dtype() &&
            (c.dtype() == a.dtype() || c.dtype() == accumulate_dtype(a.dtype())),
        op, " of ", name_of(a.dtype()), " and ", name_of(b.dtype()), " into ", name_of(c.dtype()));
  CHECK(beta == 0 || (beta == 1 && c.dtype() == accumulate_dtype(a.dtype())), "beta is ", beta,
        " into ", name_of(c.dtype()));
}

}  // namespace

void gemm(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a, const Tensor& b,
          Transpose transpose_b, double beta) {
  CHECK(a.defined() && a.shape().rank() == 2 && b.defined() && b.shape().rank() == 2,
        "gemm multiplies matrices, not ", a.shape(), " and ", b.shape());
  CHECK_SHAPE(c, {a.dim(transpose_a == Transpose::Yes ? 1 : 0),
                  b.dim(transpose_b == Transpose::Yes ? 0 : 1)});
  check_product("gemm", c, a, transpose_a, b, transpose_b, beta);
  run_op(stream, cpu::gemm, cuda::gemm, c, a, transpose_a, b, transpose_b, beta);
}

void gemm_batched(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a,
                  const Tensor& b, Transpose transpose_b, double beta) {
  CHECK(a.defined() && a.shape().rank() == 3 && b.defined() && b.shape().rank() == 3 &&
            a.dim(0) == b.dim(0),
        "gemm_batched multiplies equal numbers of matrices, not ", a.shape(), " and ", b.shape());
  CHECK_SHAPE(c, {a.dim(0), a.dim(transpose_a == Transpose::Yes ? 2 : 1),
                  b.dim(transpose_b == Transpose::Yes ? 1 : 2)});
  check_product("gemm_batched", c, a, transpose_a, b, transpose_b, beta);
  run_op(stream, cpu::gemm_batched, cuda::gemm_batched, c, a, transpose_a, b, transpose_b, beta);
}

}  // namespace ferry
