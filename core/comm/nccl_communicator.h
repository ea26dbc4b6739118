#pragma once

// A communicator of NCCL that no rank can hang in. What waits for other ranks on the host (the
// start and the end of a communicator) runs on a thread of its own, with the deadline of
// communication. What runs on the GPU is enqueued at once, by the calling thread, and watched: a
// collective that begins and does not end within the deadline, a call that does not return (it may
// have to connect to a rank that is stuck), or an error that NCCL finds meanwhile, ends the waits
// of the host (core/wait.h) with Error(ExitCode::Lost) that names it; and the job, if the host
// itself is stuck.
//
// Not with blocking = 0, NCCL's own way to this: each call then starts a thread, which takes longer
// than the messages of a layer.

#include <nccl.h>

#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/comm/runtime.h"
#include "core/device_cuda.h"
#include "core/mark.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace ferry {

/// Error(ExitCode::Internal) if the call was wrong, else Error(ExitCode::Lost). `comm` may be null.
[[noreturn]] void fail_nccl(ncclResult_t result, ncclComm_t comm, const std::string& what);

class NcclCommunicator {
 public:
  using Call = std::function<ncclResult_t()>;
  /// Makes a communicator. Must own what it uses: after the deadline it may still run.
  using Make = std::function<ncclResult_t(ncclComm_t*)>;

  explicit NcclCommunicator(CudaDevice& device, double timeout_s = comm_timeout_seconds())
      : device_(device), timeout_s_(timeout_s) {}
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  CudaDevice& device() const { return device_; }
  double timeout_s() const { return timeout_s_; }

  /// Waits for the other ranks, and from then on for their work (see above). May leave get() null:
  /// a split that this rank is in no part of.
  void make(const std::string& what, const Make& call);
  ncclComm_t get() const { return *comm_; }
  /// A call that waits for nobody.
  void ask(const std::string& what, const Call& call);
  /// A call, or several between ncclGroupStart and ncclGroupEnd, that run on `stream` (of CUDA) and
  /// use these tensors there. After an error the communicator is of no more use.
  void enqueue(Stream& stream, const std::string& what, std::initializer_list<Tensor> tensors,
               const Call& call);

 private:
  using Clock = std::chrono::steady_clock;
  struct Work {
    std::string what;
    Event before, after;
    std::optional<Clock::time_point> begun;  // when `before` was first seen to be ready
    std::optional<WaitingMark> long_wait;
  };
  /// A call that a thread of the host is in.
  struct HostCall {
    std::string what;
    Clock::time_point begun;
  };

  /// Runs the call with the deadline; `comm` stays alive as long as it runs.
  ncclResult_t run_within_deadline(const std::string& what, const Make& call) const;
  void check();
  void find_error();
  void drop_done();
  bool broken();

  CudaDevice& device_;
  double timeout_s_;
  std::shared_ptr<ncclComm_t> comm_ = std::make_shared<ncclComm_t>(nullptr);
  std::mutex mutex_;
  std::exception_ptr error_;  // the first
  std::optional<HostCall> host_call_;
  std::deque<Work> under_way_;
  std::shared_ptr<void> wait_check_;
};

}  // namespace ferry
