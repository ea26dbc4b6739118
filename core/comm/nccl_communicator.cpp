#include "core/comm/nccl_communicator.h"

#include <cstdio>
#include <exception>
#include <future>
#include <thread>

#include "core/check.h"
#include "core/stream_cuda.h"
#include "core/wait.h"

namespace ferry {

void fail_nccl(ncclResult_t result, ncclComm_t comm, const std::string& what) {
  const char* detail = ncclGetLastError(comm);
  const bool our_fault = result == ncclInvalidArgument || result == ncclInvalidUsage;
  fail(our_fault ? ExitCode::Internal : ExitCode::Lost, "communication failed: ", what,
       ": NCCL: ", ncclGetErrorString(result), detail != nullptr && *detail ? ": " : "",
       detail != nullptr ? detail : "",
       "\n  why : a rank, a GPU or a link between them failed; NCCL_DEBUG=INFO tells more"
       "\n  try : restart the job");
}

NcclCommunicator::~NcclCommunicator() {
  wait_check_.reset();
  if (get() == nullptr) return;
  try {
    device_.make_current();
    // It waits for the other ranks, which after an error may never come.
    if (broken() || std::uncaught_exceptions() > 0) {
      static_cast<void>(ncclCommAbort(get()));
      return;
    }
    const std::string what = "end of a communicator";
    const ncclResult_t result =
        run_within_deadline(what, [](ncclComm_t* comm) { return ncclCommDestroy(*comm); });
    if (result != ncclSuccess) fail_nccl(result, nullptr, what);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ferry: %s\n", error.what());
  }
}

ncclResult_t NcclCommunicator::run_within_deadline(const std::string& what,
                                                   const Make& call) const {
  std::promise<ncclResult_t> promise;
  std::future<ncclResult_t> result = promise.get_future();
  const int ordinal = device_.ordinal();
  std::thread([comm = comm_, call, ordinal, promise = std::move(promise)]() mutable {
    const cudaError_t error = cudaSetDevice(ordinal);
    promise.set_value(error == cudaSuccess ? call(comm.get()) : ncclUnhandledCudaError);
  }).detach();
  const auto limit = std::chrono::duration<double>(timeout_s_);
  if (result.wait_for(limit) != std::future_status::ready)
    fail_deadline(what, timeout_s_, timeout_s_);
  return result.get();
}

void NcclCommunicator::make(const std::string& what, const Make& call) {
  const ncclResult_t result = run_within_deadline(what, call);
  if (result != ncclSuccess) fail_nccl(result, nullptr, what);
  if (get() != nullptr) wait_check_ = add_wait_check([this] { check(); });
}

void NcclCommunicator::ask(const std::string& what, const Call& call) {
  const ncclResult_t result = call();
  if (result != ncclSuccess) fail_nccl(result, get(), what);
}

void NcclCommunicator::enqueue(Stream& stream, const std::string& what,
                               std::initializer_list<Tensor> tensors, const Call& call) {
  if (broken()) fail(ExitCode::Lost, what, ": the group failed before");
  const Event before = stream.record();
  {
    std::lock_guard lock(mutex_);
    host_call_ = {what, Clock::now()};
  }
  const ncclResult_t result = call();
  std::lock_guard lock(mutex_);
  host_call_.reset();
  try {
    if (result != ncclSuccess) fail_nccl(result, get(), what);
  } catch (...) {
    if (!error_) error_ = std::current_exception();
    throw;
  }
  const Event after = stream.record();
  for (const Tensor& tensor : tensors) as_cuda(stream).hold_until(tensor, after);
  drop_done();
  under_way_.emplace_back(what, before, after);
}

void NcclCommunicator::check() {
  std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);  // for every thread that waits
  try {
    find_error();
  } catch (...) {
    error_ = std::current_exception();
    throw;
  }
}

void NcclCommunicator::find_error() {
  const auto now = Clock::now();
  const auto require_in_time = [&](const std::string& what, Clock::time_point begun) {
    const std::chrono::duration<double> waited = now - begun;
    if (waited.count() > timeout_s_) fail_deadline(what, waited.count(), timeout_s_);
    return waited.count();
  };
  // First, because it asks nobody: where a call is stuck, the driver may be, too.
  if (host_call_) require_in_time(host_call_->what, host_call_->begun);
  drop_done();
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(get(), &state);
  const ncclResult_t result = asked != ncclSuccess ? asked : state;
  if (result != ncclSuccess && result != ncclInProgress)
    fail_nccl(result, get(), under_way_.empty() ? "between calls" : under_way_.front().what);
  if (under_way_.empty()) return;
  // The collectives of a communicator run one after the other, so only the first can be stuck.
  Work& first = under_way_.front();
  if (!first.begun && first.before.ready()) first.begun = now;
  if (!first.begun) return;
  if (require_in_time(first.what, *first.begun) > timeout_s_ / 2 && !first.long_wait)
    first.long_wait.emplace();
}

bool NcclCommunicator::broken() {
  std::lock_guard lock(mutex_);
  return error_ != nullptr;
}

void NcclCommunicator::drop_done() {
  while (!under_way_.empty() && under_way_.front().after.ready()) under_way_.pop_front();
}

}  // namespace ferry
