#pragma once

// Checks of CUDA, cuBLAS and CUDA driver calls. A failure throws Error with the call, file, line
// and the name of the error: Resource if memory ran out, Lost if the hardware failed, else
// Internal.

#include <cublas_api.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

namespace ferry::detail {
[[noreturn]] void cuda_failed(cudaError_t error, const char* call, const char* file, int line);
[[noreturn]] void cublas_failed(cublasStatus_t status, const char* call, const char* file,
                                int line);
[[noreturn]] void driver_failed(CUresult result, const char* call, const char* file, int line);
/// For destructors, which must not throw: writes the failure to standard error.
void report_cuda_failure(cudaError_t error, const char* call, const char* file, int line) noexcept;
}  // namespace ferry::detail

/// CUDA_CHECK(cudaGetLastError()) after a kernel launch reports a launch that was refused.
#define CUDA_CHECK(call)                                                    \
  do {                                                                      \
    const cudaError_t ferry_error = (call);                                 \
    if (ferry_error != cudaSuccess) [[unlikely]]                            \
      ::ferry::detail::cuda_failed(ferry_error, #call, __FILE__, __LINE__); \
  } while (false)

#define CUDA_CHECK_NOTHROW(call)                                                    \
  do {                                                                              \
    const cudaError_t ferry_error = (call);                                         \
    if (ferry_error != cudaSuccess) [[unlikely]]                                    \
      ::ferry::detail::report_cuda_failure(ferry_error, #call, __FILE__, __LINE__); \
  } while (false)

#define CUBLAS_CHECK(call)                                                     \
  do {                                                                         \
    const cublasStatus_t ferry_status = (call);                                \
    if (ferry_status != CUBLAS_STATUS_SUCCESS) [[unlikely]]                    \
      ::ferry::detail::cublas_failed(ferry_status, #call, __FILE__, __LINE__); \
  } while (false)

#define CUDA_DRIVER_CHECK(call)                                                \
  do {                                                                         \
    const CUresult ferry_result = (call);                                      \
    if (ferry_result != CUDA_SUCCESS) [[unlikely]]                             \
      ::ferry::detail::driver_failed(ferry_result, #call, __FILE__, __LINE__); \
  } while (false)
