#pragma once

// What cuBLASLt needs to know of dense products of one kind. For gemm_cuda.cpp alone.

#include <cublasLt.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace ferry::cuda {

/// A stored row-major matrix, which cuBLAS reads as its column-major transpose; or a batch of them,
/// one behind the other.
struct GemmMatrix {
  int64_t batch = 1;
  int64_t rows = 0;
  int64_t columns = 0;
  DType dtype = DType::F32;
  bool transposed = false;
  int64_t alignment = 0;  // bytes, of the address of each; 256 at most

  explicit GemmMatrix(const Tensor& tensor, bool flip = false);
  auto operator<=>(const GemmMatrix&) const = default;
};

/// c = op(a) op(b) + beta * c. Products of one kind may take the same algorithm.
struct GemmKind {
  GemmMatrix c, a, b;
  bool adds = false;  // beta is not 0

  auto operator<=>(const GemmKind&) const = default;
  /// "1 x [4096, 6144] bf16 @256 = [4096, 2048] bf16 @256 * [6144, 2048]^T bf16 @256".
  std::string text() const;
};

class GemmLayout {
 public:
  explicit GemmLayout(const GemmMatrix& matrix);
  ~GemmLayout() { static_cast<void>(cublasLtMatrixLayoutDestroy(layout_)); }
  GemmLayout(const GemmLayout&) = delete;
  GemmLayout& operator=(const GemmLayout&) = delete;
  cublasLtMatrixLayout_t get() const { return layout_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
};

/// Row-major c = op(a) op(b) is computed as the column-major product c^T = op(b)^T op(a)^T, so
/// cuBLAS's first operand is b.
class GemmPlan {
 public:
  explicit GemmPlan(const GemmKind& kind);
  ~GemmPlan() { static_cast<void>(cublasLtMatmulDescDestroy(description_)); }
  GemmPlan(const GemmPlan&) = delete;
  GemmPlan& operator=(const GemmPlan&) = delete;

  /// What cuBLAS's heuristic proposes, the best estimate first: at least one, at most `most`. All
  /// keep partial sums in the compute type and add them in a fixed order.
  std::vector<cublasLtMatmulAlgo_t> candidates(Stream& stream, int most) const;
  /// Whether cuBLAS can compute this kind so, within the workspace and by such sums.
  bool accepts(Stream& stream, const cublasLtMatmulAlgo_t& algorithm) const;

  /// Enqueues a product. The matrices are of the kind, in device memory.
  void run(Stream& stream, void* c, const void* a, const void* b, double beta,
           const cublasLtMatmulAlgo_t& algorithm) const;

 private:
  void set_transpose(cublasLtMatmulDescAttributes_t attribute, bool transposed);
  template <class Scalar>
  void run_as(Stream& stream, void* c, const void* a, const void* b, double beta,
              const cublasLtMatmulAlgo_t& algorithm) const;

  GemmKind kind_;
  cublasLtMatmulDesc_t description_ = nullptr;
  GemmLayout c_, a_, b_;
};

}  // namespace ferry::cuda
