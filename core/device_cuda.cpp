#include "core/device_cuda.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "core/check.h"
#include "core/check_cuda.h"

namespace ferry {

CudaDevice::CudaDevice(int ordinal) : ordinal_(ordinal), pinned_pool_(ordinal) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    fail(ExitCode::Resource, "no GPU can be used: ", cudaGetErrorString(error),
         ". Check nvidia-smi, or use run.backend=cpu");
  }
  if (ordinal < 0 || ordinal >= count)
    fail(ExitCode::Resource, "no GPU cuda:", ordinal, ": this host has ", count,
         " that this process may use. Start fewer ranks on it, or check CUDA_VISIBLE_DEVICES");
  make_current();
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, ordinal));
  name_ = concat(properties.name, " (cuda:", ordinal, ")");
  num_multiprocessors_ = properties.multiProcessorCount;
  CUDA_CHECK(cudaDeviceGetDefaultMemPool(&pool_, ordinal));
  // The pool never returns memory to the driver by itself: mapping it again is slow.
  uint64_t threshold = std::numeric_limits<uint64_t>::max();
  CUDA_CHECK(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &threshold));
  events_ = std::make_shared<CudaEventPool>(ordinal);
}

CudaDevice::~CudaDevice() {
  if (cublaslt_ == nullptr) return;
  const cublasStatus_t status = cublasLtDestroy(cublaslt_);
  if (status != CUBLAS_STATUS_SUCCESS)
    std::fprintf(stderr, "ferry: cublasLtDestroy: %s\n", cublasGetStatusName(status));
}

void CudaDevice::make_current() const { CUDA_CHECK(cudaSetDevice(ordinal_)); }

std::unique_ptr<Stream> CudaDevice::make_stream(std::string name) {
  return std::make_unique<CudaStream>(*this, std::move(name));
}

std::shared_ptr<Storage> CudaDevice::allocate(Stream& stream, std::string_view name,
                                              int64_t bytes) {
  CHECK(&stream.device() == this, "stream '", stream.name(), "' is of ", stream.device().name(),
        ", not of ", name_);
  return allocate_cuda(*this, as_cuda(stream), name, bytes);
}

std::shared_ptr<Storage> CudaDevice::allocate_host(std::string_view name, int64_t bytes) {
  make_current();
  return allocate_pinned(*this, name, bytes);
}

int64_t CudaDevice::total_bytes() const {
  make_current();
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(total);
}

int64_t CudaDevice::free_bytes() const {
  make_current();
  size_t free = 0, total = 0;
  uint64_t reserved = 0, used = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  CUDA_CHECK(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved));
  CUDA_CHECK(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrUsedMemCurrent, &used));
  return static_cast<int64_t>(free + reserved - used);
}

void CudaDevice::release_unused_memory() {
  reclaim();
  make_current();
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemPoolTrimTo(pool_, 0));
  CUDA_CHECK(cudaDeviceGraphMemTrim(ordinal_));
}

cublasLtHandle_t CudaDevice::cublaslt() {
  std::lock_guard lock(mutex_);
  if (cublaslt_ == nullptr) {
    make_current();
    CUBLAS_CHECK(cublasLtCreate(&cublaslt_));
  }
  return cublaslt_;
}

std::string CudaDevice::table_text(const MemoryLedger& ledger) {
  constexpr size_t kRows = 8;
  std::vector<MemoryLedger::Usage> rows = ledger.table();
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.current > b.current; });
  if (rows.size() > kRows) rows.resize(kRows);
  std::string text;
  for (const auto& row : rows)
    if (row.current > 0) text += concat("  ", row.current >> 20, " MiB  ", row.name, "\n");
  return text;
}

std::unique_ptr<Device> make_cuda_device(int ordinal) {
  return std::make_unique<CudaDevice>(ordinal);
}

int num_cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());
  return 0;
}

std::string cuda_bus_id(int ordinal) {
  char bus_id[32] = "";
  CUDA_CHECK(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), ordinal));
  return bus_id;
}

std::vector<std::pair<std::string, std::string>> cuda_library_versions() {
  // Both CUDA numbers are 1000 * major + 10 * minor, cuBLAS's is 10000 * major + 100 * minor +
  // patch.
  int runtime = 0, driver = 0;
  CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  CUDA_CHECK(cudaDriverGetVersion(&driver));
  const auto cublas = static_cast<int>(cublasLtGetVersion());
  return {{"cuda", concat(runtime / 1000, '.', runtime % 1000 / 10)},
          {"driver for cuda", concat(driver / 1000, '.', driver % 1000 / 10)},
          {"cublas", concat(cublas / 10000, '.', cublas % 10000 / 100, '.', cublas % 100)}};
}

}  // namespace ferry
