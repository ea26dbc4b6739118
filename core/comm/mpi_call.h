#pragma once

// How MPI is called: never blocking, with a deadline, with every return code checked.

#include <mpi.h>

#include <functional>
#include <string>

#include "core/comm/runtime.h"

namespace ferry {

/// Throws Error(ExitCode::Lost) with MPI's own text if `code` is an error.
void check_mpi(int code, const std::string& what);

/// Starts a non-blocking call and polls it. Error(ExitCode::Lost) with `what`, the seconds waited
/// and the limit when it is not done in time. MPI may still write to the call's buffers then.
void complete_mpi(const std::function<int(MPI_Request*)>& start, const std::string& what,
                  double timeout_s = comm_timeout_seconds());

/// Owns a communicator, whose errors are returned instead of ending the process.
class MpiCommunicator {
 public:
  explicit MpiCommunicator(MPI_Comm owned);
  ~MpiCommunicator();
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;
  /// Collective over `comm`.
  static MPI_Comm duplicate(MPI_Comm comm);

  MPI_Comm get() const { return comm_; }
  int rank() const;
  int size() const;

 private:
  MPI_Comm comm_;
};

}  // namespace ferry
