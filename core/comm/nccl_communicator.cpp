#include "core/comm/nccl_communicator.h"

#include <cstdio>
#include <exception>
#include <thread>

#include "core/check.h"
#include "core/wait.h"

namespace ferry {
namespace {

// A call that only enqueues is done by a thread of NCCL within tens of microseconds, for which
// going to sleep takes too long; making connections takes long.
constexpr std::chrono::microseconds kSpin{500};
constexpr std::chrono::microseconds kPause{50};

// Waits until the call that returned `result` is done on the host, which for a collective means
// that it is enqueued. An error of an earlier operation shows here, too.
void await_nccl(ncclResult_t result, ncclComm_t comm, const std::string& what, double limit) {
  using Clock = std::chrono::steady_clock;
  if (result != ncclSuccess && result != ncclInProgress) fail_nccl(result, comm, what);
  const auto begin = Clock::now();
  while (true) {
    ncclResult_t state = ncclInProgress;
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
    if (asked != ncclSuccess) fail_nccl(asked, comm, what);
    if (state == ncclSuccess) return;
    if (state != ncclInProgress) fail_nccl(state, comm, what);
    const std::chrono::duration<double> waited = Clock::now() - begin;
    if (waited.count() > limit) fail_deadline(what, waited.count(), limit);
    if (waited > kSpin)
      std::this_thread::sleep_for(kPause);
    else
      std::this_thread::yield();
  }
}

}  // namespace

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
  if (comm_ == nullptr) return;
  try {
    device_.make_current();
    // Finalising waits for the other ranks, which after an error may never come.
    if (broken() || std::uncaught_exceptions() > 0) {
      static_cast<void>(ncclCommAbort(comm_));
      return;
    }
    await_nccl(ncclCommFinalize(comm_), comm_, "ncclCommFinalize", timeout_s_);
    static_cast<void>(ncclCommDestroy(comm_));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ferry: %s\n", error.what());
    static_cast<void>(ncclCommAbort(comm_));
  }
}

ncclConfig_t NcclCommunicator::config() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

void NcclCommunicator::run(const std::string& what, const Call& call) {
  if (broken()) fail(ExitCode::Lost, what, ": the group failed before");
  try {
    const ncclResult_t result = call();  // may set comm_
    await_nccl(result, comm_, what, timeout_s_);
  } catch (...) {
    set_error(std::current_exception());
    throw;
  }
}

void NcclCommunicator::enqueue(Stream& stream, const std::string& what, const Call& call) {
  const Event before = stream.record();
  run(what, call);
  std::lock_guard lock(mutex_);
  drop_done();
  under_way_.emplace_back(what, before, stream.record());
}

void NcclCommunicator::watch() {
  wait_check_ = add_wait_check([this] { check(); });
}

// The collectives of a communicator run one after the other, so only the first can be stuck.
void NcclCommunicator::check() {
  std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);  // for every thread that waits
  drop_done();
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
  const ncclResult_t result = asked != ncclSuccess ? asked : state;
  const auto now = Clock::now();
  try {
    if (result != ncclSuccess && result != ncclInProgress)
      fail_nccl(result, comm_, under_way_.empty() ? "between calls" : under_way_.front().what);
    if (under_way_.empty()) return;
    Work& first = under_way_.front();
    if (!first.begun && first.before.ready()) first.begun = now;
    if (!first.begun) return;
    const std::chrono::duration<double> waited = now - *first.begun;
    if (!first.long_wait && waited.count() > timeout_s_ / 2) first.long_wait.emplace();
    if (waited.count() > timeout_s_) fail_deadline(first.what, waited.count(), timeout_s_);
  } catch (...) {
    error_ = std::current_exception();
    throw;
  }
}

bool NcclCommunicator::broken() {
  std::lock_guard lock(mutex_);
  return error_ != nullptr;
}

void NcclCommunicator::set_error(std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
}

void NcclCommunicator::drop_done() {
  while (!under_way_.empty() && under_way_.front().after.ready()) under_way_.pop_front();
}

}  // namespace ferry
