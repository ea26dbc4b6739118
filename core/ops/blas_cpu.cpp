#include "core/ops/blas_cpu.h"

#include <cblas.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <mutex>

namespace ferry::cpu {
namespace {

void set_threads_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (std::getenv("OPENBLAS_NUM_THREADS") == nullptr) openblas_set_num_threads(1);
  });
}

CBLAS_TRANSPOSE flag_of(Transpose transpose) {
  return transpose == Transpose::Yes ? CblasTrans : CblasNoTrans;
}

void call(float alpha, float beta, CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, blasint m, blasint n,
          blasint k, const float* a, blasint lda, const float* b, blasint ldb, float* c,
          blasint ldc) {
  cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
void call(double alpha, double beta, CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, blasint m, blasint n,
          blasint k, const double* a, blasint lda, const double* b, blasint ldb, double* c,
          blasint ldc) {
  cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

template <class T>
void multiply(int64_t m, int64_t n, int64_t k, T alpha, Matrix<const T> a, Transpose transpose_a,
              Matrix<const T> b, Transpose transpose_b, T beta, Matrix<T> c) {
  if (m == 0 || n == 0) return;
  if (k == 0) {  // BLAS demands strides of at least 1 even then
    if (beta == 0)
      for (int64_t i = 0; i < m; ++i) std::fill_n(c.data + i * c.stride, n, T{0});
    return;
  }
  constexpr int64_t kLimit = std::numeric_limits<blasint>::max();
  CHECK(m <= kLimit && n <= kLimit && k <= kLimit &&
            std::max({a.stride, b.stride, c.stride}) <= kLimit,
        "a product of ", m, " x ", k, " x ", n, " is too large for BLAS");
  set_threads_once();
  call(alpha, beta, flag_of(transpose_a), flag_of(transpose_b), static_cast<blasint>(m),
       static_cast<blasint>(n), static_cast<blasint>(k), a.data, static_cast<blasint>(a.stride),
       b.data, static_cast<blasint>(b.stride), c.data, static_cast<blasint>(c.stride));
}

}  // namespace

void blas_gemm(int64_t m, int64_t n, int64_t k, float alpha, Matrix<const float> a,
               Transpose transpose_a, Matrix<const float> b, Transpose transpose_b, float beta,
               Matrix<float> c) {
  multiply(m, n, k, alpha, a, transpose_a, b, transpose_b, beta, c);
}

void blas_gemm(int64_t m, int64_t n, int64_t k, double alpha, Matrix<const double> a,
               Transpose transpose_a, Matrix<const double> b, Transpose transpose_b, double beta,
               Matrix<double> c) {
  multiply(m, n, k, alpha, a, transpose_a, b, transpose_b, beta, c);
}

}  // namespace ferry::cpu
