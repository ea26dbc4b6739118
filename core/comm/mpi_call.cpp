#include "core/comm/mpi_call.h"

#include <chrono>
#include <thread>

#include "core/check.h"
#include "core/comm/runtime.h"

namespace ferry {
namespace {

using Clock = std::chrono::steady_clock;

// Short calls are polled without a pause; after that a pause spares the core that another rank of
// this host may need.
constexpr std::chrono::microseconds kSpin{50};
constexpr std::chrono::microseconds kPause{50};

}  // namespace

void check_mpi(int code, const std::string& what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(ExitCode::Lost, "communication failed: ", what, ": ",
       std::string(text, static_cast<size_t>(length)));
}

void complete_mpi(const std::function<int(MPI_Request*)>& start, const std::string& what) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(start(&request), what);
  const auto begin = Clock::now();
  const auto limit = std::chrono::duration<double>(comm_timeout_seconds());
  while (true) {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what);
    if (done) return;
    const auto waited = Clock::now() - begin;
    if (waited > limit)
      fail(ExitCode::Lost, "communication hangs: ", what, " waited ",
           std::chrono::duration<double>(waited).count(), " s, the limit is ", limit.count(),
           " s (FERRY_COMM_TIMEOUT_S)\n  why : a rank is gone or stuck\n  try : restart the job");
    if (waited > kSpin) std::this_thread::sleep_for(kPause);
  }
}

MPI_Comm MpiCommunicator::duplicate(MPI_Comm comm) {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(comm, &copy), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return copy;
}

MpiCommunicator::~MpiCommunicator() {
  int finalized = 0;
  // After an error the others may never make the collective call that freeing is.
  if (std::uncaught_exceptions() > 0) return;
  if (MPI_Finalized(&finalized) == MPI_SUCCESS && !finalized) MPI_Comm_free(&comm_);
}

int MpiCommunicator::rank() const {
  int rank = 0;
  check_mpi(MPI_Comm_rank(comm_, &rank), "MPI_Comm_rank");
  return rank;
}

int MpiCommunicator::size() const {
  int size = 0;
  check_mpi(MPI_Comm_size(comm_, &size), "MPI_Comm_size");
  return size;
}

}  // namespace ferry
