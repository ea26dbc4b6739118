#pragma once

// How MPI is called: never blocking, with a deadline, with every return code checked.

#include <mpi.h>

#include <functional>
#include <string>

namespace ferry {

/// Throws Error(ExitCode::Lost) with MPI's own text if `code` is an error.
void check_mpi(int code, const std::string& what);

/// Starts a non-blocking call and polls it. Error(ExitCode::Lost) with `what`, the seconds waited
/// and the rank when it is not done within comm_timeout_seconds().
void complete_mpi(const std::function<int(MPI_Request*)>& start, const std::string& what);

/// A duplicate of a communicator that returns errors instead of ending the process.
class MpiCommunicator {
 public:
  explicit MpiCommunicator(MPI_Comm owned) : comm_(owned) {}
  ~MpiCommunicator();
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;
  static MPI_Comm duplicate(MPI_Comm comm);

  MPI_Comm get() const { return comm_; }
  int rank() const;
  int size() const;

 private:
  MPI_Comm comm_;
};

}  // namespace ferry
