#include "core/comm/mpi_call.h"

#include <chrono>
#include <exception>
#include <optional>
#include <thread>

#include "core/check.h"
#include "core/mark.h"

namespace ferry {
namespace {

using Clock = std::chrono::steady_clock;

// A short call is polled with other threads let in between, because the rank it waits for may need
// this core; a long one with pauses, which cost it little.
constexpr std::chrono::microseconds kYield{1000};
constexpr std::chrono::microseconds kPause{50};

}  // namespace

void check_mpi(int code, const std::string& what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  fail(ExitCode::Lost, "communication failed: ", what, ": ",
       std::string(text, static_cast<size_t>(length)), " (MPI error ", code,
       ")\n  why : a rank or a connection was lost\n  try : restart the job");
}

void complete_mpi(const std::function<int(MPI_Request*)>& start, const std::string& what,
                  double timeout_s) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(start(&request), what);
  const auto begin = Clock::now();
  std::optional<WaitingMark> long_wait;
  while (true) {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what);
    if (done) return;
    const std::chrono::duration<double> waited = Clock::now() - begin;
    if (!long_wait && waited.count() > timeout_s / 2) long_wait.emplace();
    if (waited.count() > timeout_s) fail_deadline(what, waited.count(), timeout_s);
    if (waited < kYield)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kPause);
  }
}

MpiCommunicator::MpiCommunicator(MPI_Comm owned) : comm_(owned) {
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

MPI_Comm MpiCommunicator::duplicate(MPI_Comm comm) {
  MPI_Comm copy = MPI_COMM_NULL;
  complete_mpi([&](MPI_Request* request) { return MPI_Comm_idup(comm, &copy, request); },
               "MPI_Comm_idup");
  return copy;
}

MpiCommunicator::~MpiCommunicator() {
  // After an error the others may never make the collective call that freeing is.
  if (std::uncaught_exceptions() > 0) return;
  int finalized = 0;
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
