#pragma once

// OpenBLAS for the CPU backend: one call for both precisions, and matrices widened to the precision
// that BLAS multiplies in.

#include <cstdint>
#include <memory>

#include "core/ops/gemm.h"

namespace ferry::cpu {

/// Row-major matrices: `stride` elements from one row to the next.
template <class T>
struct Matrix {
  T* data;
  int64_t stride;
};

/// c [m, n] = alpha * op(a) [m, k] * op(b) [k, n] + beta * c. With beta = 0, c is not read.
/// One thread, so that results do not depend on the number of cores, unless the environment sets
/// OPENBLAS_NUM_THREADS.
void blas_gemm(int64_t m, int64_t n, int64_t k, float alpha, Matrix<const float> a,
               Transpose transpose_a, Matrix<const float> b, Transpose transpose_b, float beta,
               Matrix<float> c);
void blas_gemm(int64_t m, int64_t n, int64_t k, double alpha, Matrix<const double> a,
               Transpose transpose_a, Matrix<const double> b, Transpose transpose_b, double beta,
               Matrix<double> c);

/// `count` elements in the precision of arithmetic: the memory itself, or a widened copy.
template <class T>
class Widened {
 public:
  using Compute = compute_t<T>;

  Widened(const T* data, int64_t count) {
    if constexpr (std::is_same_v<T, Compute>) {
      view_ = data;
    } else {
      copy_.reset(new Compute[static_cast<size_t>(count)]);
      for (int64_t i = 0; i < count; ++i) copy_[i] = static_cast<Compute>(data[i]);
      view_ = copy_.get();
    }
  }
  const Compute* data() const { return view_; }

 private:
  std::unique_ptr<Compute[]> copy_;
  const Compute* view_ = nullptr;
};

/// A result that BLAS writes: the memory itself, or a copy that store() rounds into it.
template <class T>
class Result {
 public:
  using Compute = compute_t<T>;

  /// With `keep`, starts from what is there.
  Result(T* data, int64_t count, bool keep) : target_(data), count_(count) {
    if constexpr (!std::is_same_v<T, Compute>) {
      copy_.reset(new Compute[static_cast<size_t>(count)]);
      if (keep)
        for (int64_t i = 0; i < count; ++i) copy_[i] = static_cast<Compute>(data[i]);
    }
  }
  Compute* data() {
    if constexpr (std::is_same_v<T, Compute>)
      return target_;
    else
      return copy_.get();
  }
  void store() {
    if constexpr (!std::is_same_v<T, Compute>)
      for (int64_t i = 0; i < count_; ++i) target_[i] = static_cast<T>(copy_[i]);
  }

 private:
  T* target_;
  int64_t count_;
  std::unique_ptr<Compute[]> copy_;
};

}  // namespace ferry::cpu
