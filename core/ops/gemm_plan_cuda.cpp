#include "core/ops/gemm_plan_cuda.h"

#include <algorithm>
#include <bit>

#include "core/check_cuda.h"
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

std::string text_of(const GemmMatrix& matrix) {
  return concat('[', matrix.rows, ", ", matrix.columns, ']', matrix.transposed ? "^T " : " ",
                name_of(matrix.dtype), " @", matrix.alignment);
}

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

// Partial sums are kept in the compute type, never rounded to BF16 in between, and added in a step
// of their own.
constexpr auto kReductions = static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);

bool sums_rightly(const cublasLtMatmulAlgo_t& algorithm) {
  uint32_t scheme = 0;
  size_t written = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoConfigGetAttribute(
      &algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme, &written);
  return status == CUBLAS_STATUS_SUCCESS && (scheme & ~kReductions) == 0;
}

}  // namespace

GemmMatrix::GemmMatrix(const Tensor& tensor, bool flip)
    : batch(tensor.shape().rank() == 3 ? tensor.dim(0) : 1),
      rows(tensor.dim(-2)),
      columns(tensor.dim(-1)),
      dtype(tensor.dtype()),
      transposed(flip) {
  auto bits = reinterpret_cast<uintptr_t>(tensor.raw());
  if (batch > 1) bits |= static_cast<uintptr_t>(tensor.bytes() / batch);
  alignment = int64_t{1} << std::min(std::countr_zero(bits), 8);
}

std::string GemmKind::text() const {
  return concat(c.batch, " x ", text_of(c), adds ? " += " : " = ", text_of(a), " * ", text_of(b));
}

GemmLayout::GemmLayout(const GemmMatrix& matrix) {
  CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout_, cuda_type(matrix.dtype),
                                          static_cast<uint64_t>(matrix.columns),
                                          static_cast<uint64_t>(matrix.rows), matrix.columns));
  if (matrix.batch == 1) return;
  const auto set = [this](cublasLtMatrixLayoutAttribute_t attribute, auto value) {
    CUBLAS_CHECK(cublasLtMatrixLayoutSetAttribute(layout_, attribute, &value, sizeof value));
  };
  set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(matrix.batch));
  set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, int64_t{matrix.rows * matrix.columns});
}

GemmPlan::GemmPlan(const GemmKind& kind) : kind_(kind), c_(kind.c), a_(kind.a), b_(kind.b) {
  const bool wide = kind.a.dtype == DType::F64;
  CUBLAS_CHECK(cublasLtMatmulDescCreate(&description_,
                                        wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                        wide ? CUDA_R_64F : CUDA_R_32F));
  set_transpose(CUBLASLT_MATMUL_DESC_TRANSA, kind.b.transposed);
  set_transpose(CUBLASLT_MATMUL_DESC_TRANSB, kind.a.transposed);
}

void GemmPlan::set_transpose(cublasLtMatmulDescAttributes_t attribute, bool transposed) {
  const cublasOperation_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  CUBLAS_CHECK(
      cublasLtMatmulDescSetAttribute(description_, attribute, &operation, sizeof operation));
}

std::vector<cublasLtMatmulAlgo_t> GemmPlan::candidates(Stream& stream, int most) const {
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                 static_cast<uint64_t>(kBlasWorkspaceBytes));
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kReductions);
  const auto align = [&](cublasLtMatmulPreferenceAttributes_t attribute, const GemmMatrix& matrix) {
    preference.set(attribute, static_cast<uint32_t>(matrix.alignment));
  };
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kind_.b);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kind_.a);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kind_.c);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kind_.c);

  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int found = 0;
  CUBLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(cublaslt_handle(stream), description_, b_.get(),
                                              a_.get(), c_.get(), c_.get(), preference.get(), most,
                                              results.data(), &found));
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (size_t i = 0; i < static_cast<size_t>(found); ++i)
    if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(results[i].algo);
  CHECK(!algorithms.empty(), "cuBLAS has no algorithm for ", kind_.text());
  return algorithms;
}

bool GemmPlan::accepts(Stream& stream, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(cublaslt_handle(stream), description_, b_.get(), a_.get(), c_.get(),
                              c_.get(), &algorithm, &result);
  return status == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= static_cast<size_t>(kBlasWorkspaceBytes) &&
         sums_rightly(algorithm);
}

template <class Scalar>
void GemmPlan::run_as(Stream& stream, void* c, const void* a, const void* b, double beta,
                      const cublasLtMatmulAlgo_t& algorithm) const {
  const Scalar one = 1;
  const auto beta_scalar = static_cast<Scalar>(beta);
  const Tensor& workspace = as_cuda(stream).blas_workspace();
  CUBLAS_CHECK(cublasLtMatmul(cublaslt_handle(stream), description_, &one, b, b_.get(), a, a_.get(),
                              &beta_scalar, c, c_.get(), c, c_.get(), &algorithm, workspace.raw(),
                              static_cast<size_t>(workspace.bytes()), cuda_handle(stream)));
}

void GemmPlan::run(Stream& stream, void* c, const void* a, const void* b, double beta,
                   const cublasLtMatmulAlgo_t& algorithm) const {
  if (kind_.a.dtype == DType::F64) {
    run_as<double>(stream, c, a, b, beta, algorithm);
  } else {
    run_as<float>(stream, c, a, b, beta, algorithm);
  }
}

}  // namespace ferry::cuda
