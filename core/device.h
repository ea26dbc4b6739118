#pragma once

// A device: the CPU or one GPU. It makes streams and the memory of tensors.
//
// The CPU is a complete backend: it trains, it supports float64 so that gradient checks are tight,
// and it is the specification of every op.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/allocator.h"
#include "core/stream.h"

namespace ferry {

enum class DeviceKind { Cpu, Cuda };

/// Memory that frees itself when the last tensor over it is gone.
class Storage {
 public:
  Storage(void* data, int64_t bytes, bool host) : data_(data), bytes_(bytes), host_(host) {
    static std::atomic<uint64_t> next{1};
    id_ = next++;
  }
  virtual ~Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  /// True if the host may read and write it (CPU and pinned memory).
  bool host() const { return host_; }
  /// Never used twice in a process, unlike an address.
  uint64_t id() const { return id_; }
  /// The memory is also used by what is enqueued on `stream` (see Stream::hold).
  virtual void used_on(Stream&) {}

 private:
  void* data_;
  int64_t bytes_;
  bool host_;
  uint64_t id_;
};

/// Must outlive its streams and tensors.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  bool is_cpu() const { return kind() == DeviceKind::Cpu; }
  /// For people: "cpu", "NVIDIA H200 (cuda:0)".
  virtual std::string name() const = 0;
  virtual std::unique_ptr<Stream> make_stream(std::string name) = 0;

  /// Memory whose first use is on `stream`, and which is free for reuse when what was enqueued on
  /// `stream` (and on streams that hold it) before the release is done. Contents are undefined;
  /// with poison_memory they are NaN. Error(ExitCode::Resource) names the request and prints the
  /// table of current allocations if there is not enough.
  virtual std::shared_ptr<Storage> allocate(Stream& stream, std::string_view name,
                                            int64_t bytes) = 0;
  /// Host memory that copies to and from this device run at full speed from (pinned for CUDA).
  virtual std::shared_ptr<Storage> allocate_host(std::string_view name, int64_t bytes) = 0;
  /// `reclaim` is called when allocate() finds too little memory, and is to let go of memory that
  /// is waiting for work of the device; allocate() then tries again. Empty: nobody.
  void on_low_memory(std::function<void()> reclaim) { reclaim_ = std::move(reclaim); }
  /// Bytes of this device in all, and free now.
  virtual int64_t total_bytes() const = 0;
  virtual int64_t free_bytes() const = 0;

  /// Memory of this device, and pinned host memory allocated for it.
  MemoryLedger& memory() { return memory_; }
  MemoryLedger& pinned_memory() { return pinned_memory_; }
  /// Fill new memory with NaN patterns: what reads before writing shows at once.
  void set_poison_memory(bool on) { poison_memory_ = on; }
  bool poison_memory() const { return poison_memory_; }

 protected:
  void reclaim() const {
    if (reclaim_) reclaim_();
  }

 private:
  MemoryLedger memory_;
  MemoryLedger pinned_memory_;
  bool poison_memory_ = false;
  std::function<void()> reclaim_;
};

std::unique_ptr<Device> make_cpu_device();
/// Error(ExitCode::Resource) if there is no such GPU or this build has no CUDA.
std::unique_ptr<Device> make_cuda_device(int ordinal);
/// The number of usable GPUs; 0 without CUDA or driver.
int num_cuda_devices();
/// Where GPU `ordinal` is on the bus of its host: "0000:1B:00.0". It must exist.
std::string cuda_bus_id(int ordinal);
/// {"cuda", "13.0"}, {"driver", ...}, {"cublas", ...}; empty without CUDA.
std::vector<std::pair<std::string, std::string>> cuda_library_versions();

}  // namespace ferry
