#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <memory>
#include <mutex>

#include "core/check_cuda.h"
#include "core/device_cuda.h"
#include "core/ops/gemm_kernels.h"
#include "core/stream_cuda.h"

namespace ferry::cuda {
namespace {

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return CUDA_R_32F;
    case DType::F64:
      return CUDA_R_64F;
    case DType::BF16:
      return CUDA_R_16BF;
    default:
      fail(ExitCode::Internal, "no matrix product of ", name_of(dtype));
  }
}

// A stored row-major matrix, which cuBLAS reads as its column-major transpose; or a batch of them,
// one behind the other.
struct Matrix {
  int64_t batch = 1;
  int64_t rows = 0;
  int64_t columns = 0;
  DType dtype = DType::F32;
  bool transposed = false;
  int64_t alignment = 0;  // bytes, of the address of each

  explicit Matrix(const Tensor& tensor, bool flip = false)
      : batch(tensor.shape().rank() == 3 ? tensor.dim(0) : 1),
        rows(tensor.dim(-2)),
        columns(tensor.dim(-1)),
        dtype(tensor.dtype()),
        transposed(flip) {
    auto bits = reinterpret_cast<uintptr_t>(tensor.raw());
    if (batch > 1) bits |= static_cast<uintptr_t>(tensor.bytes() / batch);
    alignment = int64_t{1} << std::min(std::countr_zero(bits), 8);
  }
};

class Layout {
 public:
  explicit Layout(const Matrix& matrix) {
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout_, cuda_type(matrix.dtype),
                                            static_cast<uint64_t>(matrix.columns),
                                            static_cast<uint64_t>(matrix.rows), matrix.columns));
    if (matrix.batch == 1) return;
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(matrix.batch));
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, matrix.rows * matrix.columns);
  }
  ~Layout() { static_cast<void>(cublasLtMatrixLayoutDestroy(layout_)); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  cublasLtMatrixLayout_t get() const { return layout_; }

 private:
  template <class T>
  void set(cublasLtMatrixLayoutAttribute_t attribute, T value) {
    CUBLAS_CHECK(cublasLtMatrixLayoutSetAttribute(layout_, attribute, &value, sizeof value));
  }

  cublasLtMatrixLayout_t layout_ = nullptr;
};

class Preference {
 public:
  Preference() { CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference_)); }
  ~Preference() { static_cast<void>(cublasLtMatmulPreferenceDestroy(preference_)); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    CUBLAS_CHECK(
        cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof value));
  }
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  cublasLtMatmulPreference_t preference_ = nullptr;
};

// What cuBLAS needs for products of one kind. Row-major c = op(a) op(b) is computed as the
// column-major product c^T = op(b)^T op(a)^T, so cuBLAS's first operand is b.
class Plan {
 public:
  Plan(cublasLtHandle_t handle, const Matrix& c, const Matrix& a, const Matrix& b)
      : c_(c), a_(a), b_(b) {
    const bool wide = a.dtype == DType::F64;
    CUBLAS_CHECK(cublasLtMatmulDescCreate(&description_,
                                          wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                          wide ? CUDA_R_64F : CUDA_R_32F));
    set_transpose(CUBLASLT_MATMUL_DESC_TRANSA, b.transposed);
    set_transpose(CUBLASLT_MATMUL_DESC_TRANSB, a.transposed);

    Preference preference;
    preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                   static_cast<uint64_t>(kBlasWorkspaceBytes));
    // Partial sums are kept in the compute type: never rounded to BF16 in between.
    preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                   static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(b.alignment));
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(a.alignment));
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(c.alignment));
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(c.alignment));

    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    CUBLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(handle, description_, b_.get(), a_.get(), c_.get(),
                                                c_.get(), preference.get(), 1, &result, &found));
    CHECK(found == 1, "cuBLAS has no algorithm for ", a.batch, " products of [", a.rows, ", ",
          a.columns, "] and [", b.rows, ", ", b.columns, "] ", name_of(a.dtype), " into ",
          name_of(c.dtype));
    algorithm_ = result.algo;
  }
  ~Plan() { static_cast<void>(cublasLtMatmulDescDestroy(description_)); }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  template <class Scalar>
  void run(Stream& stream, const Tensor& c, const Tensor& a, const Tensor& b, double beta) const {
    const Scalar one = 1;
    const auto beta_scalar = static_cast<Scalar>(beta);
    const Tensor& workspace = as_cuda(stream).blas_workspace();
    CUBLAS_CHECK(cublasLtMatmul(cublaslt_handle(stream), description_, &one, b.raw(), b_.get(),
                                a.raw(), a_.get(), &beta_scalar, c.raw(), c_.get(), c.raw(),
                                c_.get(), &algorithm_, workspace.raw(),
                                static_cast<size_t>(workspace.bytes()), cuda_handle(stream)));
  }

 private:
  void set_transpose(cublasLtMatmulDescAttributes_t attribute, bool transposed) {
    const cublasOperation_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    CUBLAS_CHECK(
        cublasLtMatmulDescSetAttribute(description_, attribute, &operation, sizeof operation));
  }

  cublasLtMatmulDesc_t description_ = nullptr;
  Layout c_, a_, b_;
  cublasLtMatmulAlgo_t algorithm_{};
};

// The algorithm of a kind of product is chosen once, by cuBLAS's heuristic, so that equal products
// give equal bits throughout a process.
const Plan& plan_for(Stream& stream, const Matrix& c, const Matrix& a, const Matrix& b,
                     double beta) {
  using Key = std::array<int64_t, 15>;
  static std::mutex mutex;
  static std::map<Key, std::unique_ptr<Plan>> plans;
  const Key key{as_cuda(stream).handle()->ordinal(),
                c.batch,
                c.rows,
                c.columns,
                static_cast<int64_t>(c.dtype),
                c.alignment,
                a.rows,
                a.columns,
                a.transposed,
                static_cast<int64_t>(a.dtype),
                a.alignment,
                b.rows,
                b.transposed,
                b.alignment,
                beta != 0};
  std::lock_guard lock(mutex);
  std::unique_ptr<Plan>& plan = plans[key];
  if (!plan) plan = std::make_unique<Plan>(cublaslt_handle(stream), c, a, b);
  return *plan;
}

// One product, or a batch of them.
void multiply(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a,
              const Tensor& b, Transpose transpose_b, double beta) {
  if (c.numel() == 0) return;
  if (a.numel() == 0) {  // a sum of nothing
    if (beta == 0) stream.zero(c);
    return;
  }
  as_cuda(stream).cuda_device().make_current();
  const Plan& plan = plan_for(stream, Matrix(c), Matrix(a, transpose_a == Transpose::Yes),
                              Matrix(b, transpose_b == Transpose::Yes), beta);
  if (a.dtype() == DType::F64) {
    plan.run<double>(stream, c, a, b, beta);
  } else {
    plan.run<float>(stream, c, a, b, beta);
  }
}

}  // namespace

void gemm(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a, const Tensor& b,
          Transpose transpose_b, double beta) {
  multiply(stream, c, a, transpose_a, b, transpose_b, beta);
}

void gemm_batched(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a,
                  const Tensor& b, Transpose transpose_b, double beta) {
  multiply(stream, c, a, transpose_a, b, transpose_b, beta);
}

}  // namespace ferry::cuda
