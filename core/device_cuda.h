#pragma once

// One GPU: what its streams and its memory share.

#include <cublasLt.h>

#include <memory>
#include <mutex>
#include <string>

#include "core/device.h"
#include "core/memory_cuda.h"
#include "core/stream_cuda.h"

namespace ferry {

class CudaDevice final : public Device {
 public:
  /// Error(ExitCode::Resource) if there is no such GPU.
  explicit CudaDevice(int ordinal);
  ~CudaDevice() override;

  DeviceKind kind() const override { return DeviceKind::Cuda; }
  std::string name() const override { return name_; }
  std::unique_ptr<Stream> make_stream(std::string name) override;
  std::shared_ptr<Storage> allocate(Stream& stream, std::string_view name, int64_t bytes) override;
  std::shared_ptr<Storage> allocate_host(std::string_view name, int64_t bytes) override;
  int64_t total_bytes() const override;
  /// What the driver has free, and what its pool keeps for this process without using it.
  int64_t free_bytes() const override;

  int ordinal() const { return ordinal_; }
  /// Makes this the calling thread's current device.
  void make_current() const;
  int num_multiprocessors() const { return num_multiprocessors_; }
  cublasLtHandle_t cublaslt();
  const std::shared_ptr<CudaEventPool>& events() const { return events_; }
  PinnedPool& pinned_pool() { return pinned_pool_; }
  /// Returns to the driver what its pool, and graphs that are not running, keep unused; waits for
  /// the device.
  void release_unused_memory();
  /// The largest current allocations of a ledger, for error messages.
  static std::string table_text(const MemoryLedger& ledger);

 private:
  int ordinal_;
  std::string name_;
  int num_multiprocessors_ = 0;
  cudaMemPool_t pool_ = nullptr;  // the device's default pool
  std::shared_ptr<CudaEventPool> events_;
  PinnedPool pinned_pool_;
  std::mutex mutex_;
  cublasLtHandle_t cublaslt_ = nullptr;
};

}  // namespace ferry
