#include "core/ops/blas_cpu.h"
#include "core/ops/gemm_kernels.h"

namespace ferry::cpu {
namespace {

template <class T, class C>
void multiply(const Tensor& c, const Tensor& a, Transpose transpose_a, const Tensor& b,
              Transpose transpose_b, double beta) {
  using Compute = compute_t<T>;
  const Widened<T> wide_a(a.data<T>(), a.numel());
  const Widened<T> wide_b(b.data<T>(), b.numel());
  Result<C> result(c.data<C>(), c.numel(), beta != 0);
  blas_gemm(c.dim(0), c.dim(1), a.dim(transpose_a == Transpose::Yes ? 0 : 1), Compute{1},
            Matrix<const Compute>{wide_a.data(), a.dim(1)}, transpose_a,
            Matrix<const Compute>{wide_b.data(), b.dim(1)}, transpose_b, static_cast<Compute>(beta),
            Matrix<Compute>{result.data(), c.dim(1)});
  result.store();
}

}  // namespace

void gemm(const Tensor& c, const Tensor& a, Transpose transpose_a, const Tensor& b,
          Transpose transpose_b, double beta) {
  dispatch_float(a.dtype(), [&]<class T>() {
    if (c.dtype() == a.dtype())
      multiply<T, T>(c, a, transpose_a, b, transpose_b, beta);
    else
      multiply<T, compute_t<T>>(c, a, transpose_a, b, transpose_b, beta);
  });
}

void gemm_batched(const Tensor& c, const Tensor& a, Transpose transpose_a, const Tensor& b,
                  Transpose transpose_b, double beta) {
  const auto matrix = [](const Tensor& batch, int64_t i) {
    return batch.rows(i, i + 1).reshape({batch.dim(1), batch.dim(2)});
  };
  for (int64_t i = 0; i < c.dim(0); ++i)
    gemm(matrix(c, i), matrix(a, i), transpose_a, matrix(b, i), transpose_b, beta);
}

}  // namespace ferry::cpu
