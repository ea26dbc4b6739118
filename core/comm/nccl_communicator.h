#pragma once

// A communicator of NCCL that no rank can hang in: it is made with blocking = 0, its calls are
// polled with the deadline of communication, and what runs on the GPU is watched. A collective that
// begins and does not end within the deadline, or an error that NCCL finds meanwhile, ends the
// waits of the host (core/wait.h) with Error(ExitCode::Lost) that names it.

#include <nccl.h>

#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/comm/runtime.h"
#include "core/device_cuda.h"
#include "core/mark.h"
#include "core/stream.h"

namespace ferry {

/// Error(ExitCode::Internal) if the call was wrong, else Error(ExitCode::Lost). `comm` may be null.
[[noreturn]] void fail_nccl(ncclResult_t result, ncclComm_t comm, const std::string& what);

class NcclCommunicator {
 public:
  using Call = std::function<ncclResult_t()>;

  explicit NcclCommunicator(CudaDevice& device, double timeout_s = comm_timeout_seconds())
      : device_(device), timeout_s_(timeout_s) {}
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  static ncclConfig_t config();
  ncclComm_t get() const { return comm_; }
  /// For the call that makes the communicator.
  ncclComm_t* address() { return &comm_; }
  CudaDevice& device() const { return device_; }
  double timeout_s() const { return timeout_s_; }

  /// Makes a call, or several between ncclGroupStart and ncclGroupEnd, and waits until it is done
  /// on the host. After an error the communicator is of no more use.
  void run(const std::string& what, const Call& call);
  /// The same for calls that run on `stream`, which are watched until they are done there.
  void enqueue(Stream& stream, const std::string& what, const Call& call);
  /// From now on waits of the host end with the errors of this communicator. Once it is made.
  void watch();

 private:
  using Clock = std::chrono::steady_clock;
  struct Work {
    std::string what;
    Event before, after;
    std::optional<Clock::time_point> begun;  // when `before` was first seen to be ready
    std::optional<WaitingMark> long_wait;
  };

  void check();
  void drop_done();
  bool broken();
  void set_error(std::exception_ptr error);

  CudaDevice& device_;
  double timeout_s_;
  ncclComm_t comm_ = nullptr;
  std::mutex mutex_;
  std::exception_ptr error_;  // the first
  std::deque<Work> under_way_;
  std::shared_ptr<void> wait_check_;
};

}  // namespace ferry
