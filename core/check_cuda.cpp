#include "core/check_cuda.h"

#include <cstdio>

#include "core/check.h"

namespace ferry::detail {
namespace {

ExitCode exit_code_of(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return ExitCode::Resource;
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorHardwareStackError:
      return ExitCode::Lost;
    default:
      return ExitCode::Internal;
  }
}

}  // namespace

void cuda_failed(cudaError_t error, const char* call, const char* file, int line) {
  // An error that does not stick to the context must not be blamed on the next launch.
  static_cast<void>(cudaGetLastError());
  fail(exit_code_of(error), "CUDA: ", cudaGetErrorName(error), " (", cudaGetErrorString(error),
       ") from ", call, " at ", file, ":", line,
       ". Kernels run later than they are launched: CUDA_LAUNCH_BLOCKING=1 names the one that "
       "failed");
}

void cublas_failed(cublasStatus_t status, const char* call, const char* file, int line) {
  fail(status == CUBLAS_STATUS_ALLOC_FAILED ? ExitCode::Resource : ExitCode::Internal,
       "cuBLAS: ", cublasGetStatusName(status), " (", cublasGetStatusString(status), ") from ",
       call, " at ", file, ":", line);
}

void driver_failed(CUresult result, const char* call, const char* file, int line) {
  // The values of CUresult and cudaError_t are the same for the errors that both have.
  const auto error = static_cast<cudaError_t>(result);
  fail(exit_code_of(error), "CUDA driver: ", cudaGetErrorName(error), " from ", call, " at ", file,
       ":", line);
}

void report_cuda_failure(cudaError_t error, const char* call, const char* file, int line) noexcept {
  static_cast<void>(cudaGetLastError());
  std::fprintf(stderr, "ferry: CUDA: %s (%s) from %s at %s:%d\n", cudaGetErrorName(error),
               cudaGetErrorString(error), call, file, line);
}

}  // namespace ferry::detail
