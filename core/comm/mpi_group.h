#pragma once

// Collectives over MPI. Each group has its own communicator. Calls run in call order, whatever
// stream they are made on, on CPU streams of the group: one for collectives, and one for each peer
// and direction of send and receive, which therefore never block each other. Tensors on a GPU are
// staged: copied to pinned memory on the caller's stream and back, all in stream order and without
// the host waiting.

#include <mpi.h>

#include <memory>
#include <string>

#include "core/comm/group.h"
#include "core/comm/runtime.h"

namespace ferry {

struct MpiLimits {
  double timeout_s = comm_timeout_seconds();
  /// Elements in one MPI call, whose counts are ints; longer tensors go in pieces.
  int64_t max_count = int64_t{1} << 30;
};

/// The group of all ranks of `comm`, which is duplicated. Collective.
std::unique_ptr<Group> make_mpi_group(MPI_Comm comm, const std::string& name,
                                      const MpiLimits& limits = {});

}  // namespace ferry
