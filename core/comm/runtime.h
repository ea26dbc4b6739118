#pragma once

// The processes of a job, however they were started: alone, under mpirun, or under srun.

#include <memory>
#include <string>

#include "core/comm/control.h"
#include "core/comm/group.h"
#include "core/comm/launch.h"

namespace ferry {

/// Initialises MPI (thread-multiple) if the process was started by a launcher that set it up;
/// alone, MPI is not touched at all. One per process; finalises in the destructor.
class Runtime {
 public:
  static std::unique_ptr<Runtime> start();
  virtual ~Runtime() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Rank and number of ranks on this host, to choose a GPU.
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;
  virtual std::string host_name() const = 0;
  virtual Control& control() = 0;
  /// Another control plane of all ranks, for a thread beside the one that uses control(): their
  /// calls do not meet. Collective, in the order of control()'s calls; `name` is for messages. Must
  /// not outlive this.
  virtual std::unique_ptr<Control> make_control(const std::string& name) = 0;
  /// All ranks, for host tensors and (staged) device tensors.
  virtual std::unique_ptr<Group> world_group() = 0;
  /// All ranks through NCCL on `device`'s GPU; Error(Resource) without NCCL or where two ranks
  /// share a GPU, saying so.
  virtual std::unique_ptr<Group> world_nccl_group(Device& device) = 0;
  /// Ends the whole job at once with this exit code (MPI_Abort).
  [[noreturn]] virtual void abort(int exit_code) = 0;
};

/// How this process was started, by its environment.
Launch this_launch();
/// The name of this host; "unknown host" if it has none.
std::string this_host();

/// Seconds a blocking communication may take before the job is given up; default 600, set by
/// FERRY_COMM_TIMEOUT_S.
double comm_timeout_seconds();
/// Seconds after which a rank hangs that still waits for one stream, or makes no mark: ten times
/// the limit of one communication. That limit has long ended whatever waits for a peer by then, so
/// it is a kernel, a driver or a library that never ends.
double hang_limit_seconds();
/// Error(ExitCode::Lost): the communication `what` took `waited` seconds, more than `limit`.
[[noreturn]] void fail_deadline(const std::string& what, double waited, double limit);

}  // namespace ferry
