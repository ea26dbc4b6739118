#pragma once

// Collectives over MPI. Each group has its own communicator. Calls run on the thread of a CPU
// stream; for tensors on a GPU they are staged: copied to pinned memory on the caller's stream, sent
// by a CPU stream of the group, and copied back, all in stream order and without the host waiting.

#include <mpi.h>

#include <memory>
#include <string>

#include "core/comm/group.h"

namespace ferry {

/// The group of all ranks of `comm`, which is duplicated. Collective.
std::unique_ptr<Group> make_mpi_group(MPI_Comm comm, const std::string& name);

}  // namespace ferry
