#pragma once

// A CUDA stream, its events, and what kernels and libraries need of it.
//
// Streams are non-blocking: nothing is ordered with the default stream. A stream waits for events
// of other CUDA streams on the GPU, and for events of CPU streams through a flag in pinned memory
// that the CPU stream's thread sets, so the host never waits for it.

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"

namespace ferry {

class CudaDevice;

/// Owns a cudaStream_t. Storages share it, so that memory can be freed after its Stream is gone.
class CudaStreamHandle {
 public:
  explicit CudaStreamHandle(int ordinal);
  ~CudaStreamHandle();
  CudaStreamHandle(const CudaStreamHandle&) = delete;
  CudaStreamHandle& operator=(const CudaStreamHandle&) = delete;

  cudaStream_t get() const { return stream_; }
  int ordinal() const { return ordinal_; }

 private:
  int ordinal_;
  cudaStream_t stream_ = nullptr;
};

/// The first error of host work that a stream waited for, and the name of the stream.
class HostFailure {
 public:
  explicit HostFailure(std::string stream = "?") : stream_(std::move(stream)) {}
  const std::string& stream() const { return stream_; }
  void set(std::exception_ptr error);
  void rethrow() const;

 private:
  std::string stream_;
  mutable std::mutex mutex_;
  std::exception_ptr error_;
};

/// Timing-free events of one device, reused because making one is slow. Any thread.
class CudaEventPool {
 public:
  explicit CudaEventPool(int ordinal) : ordinal_(ordinal) {}
  ~CudaEventPool();
  cudaEvent_t take();
  void give_back(cudaEvent_t event) noexcept;

 private:
  int ordinal_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

class CudaEvent final : public EventState {
 public:
  /// Records now on `stream`, whose device is current.
  CudaEvent(std::shared_ptr<CudaEventPool> pool, cudaStream_t stream,
            std::shared_ptr<HostFailure> failure);
  ~CudaEvent() override;

  bool ready() const override;
  void wait_host() const override;
  cudaEvent_t get() const { return event_; }
  /// A point of work that becomes a graph: streams of that capture may wait for it, nobody else.
  bool is_captured() const { return is_captured_; }

 private:
  std::shared_ptr<CudaEventPool> pool_;
  std::shared_ptr<HostFailure> failure_;
  cudaEvent_t event_;
  bool is_captured_;
};

class CudaStream final : public Stream {
 public:
  CudaStream(CudaDevice& device, std::string name);

  Event record() override;
  Event record_for_host() override;
  std::shared_ptr<const TimeStamp> stamp() override;
  void wait(const Event& event) override;
  void synchronize() override;
  void zero(const Tensor& tensor) override;
  void copy(const Tensor& to, const Tensor& from) override;
  void hold(const Tensor& tensor) override;
  /// Keeps the tensor's memory from being reused before `event`, a point of this stream: unlike
  /// hold(), also where this stream has later work that waits for something else.
  void hold_until(const Tensor& tensor, const Event& event);

  const std::shared_ptr<CudaStreamHandle>& handle() const { return handle_; }
  bool is_captured() const override;
  CudaDevice& cuda_device() const { return device_; }
  /// Scratch memory for cuBLAS, of this stream alone; made at the first call.
  const Tensor& blas_workspace();
  /// Two I32 that are zero, and that a kernel which counts in them leaves zero.
  const Tensor& zeroed_counters();

 private:
  CudaDevice& device_;
  std::shared_ptr<CudaStreamHandle> handle_;
  std::shared_ptr<HostFailure> failure_;
  Tensor blas_workspace_;
  Tensor zeroed_counters_;
};

/// The stream must be of a GPU, which becomes the calling thread's current device.
cudaStream_t cuda_handle(Stream& stream);
CudaStream& as_cuda(Stream& stream);

/// One handle per device, made at the first call and used by all of its streams and threads.
cublasLtHandle_t cublaslt_handle(Stream& stream);
constexpr int64_t kBlasWorkspaceBytes = int64_t{64} << 20;

/// The number of multiprocessors of the stream's device.
int num_multiprocessors(Stream& stream);

}  // namespace ferry
