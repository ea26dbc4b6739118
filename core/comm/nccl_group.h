#pragma once

// NCCL groups; present where Ferry is built with NCCL (nccl_group.cpp), else no_nccl.cpp.

#include <memory>
#include <string>

#include "core/comm/control.h"
#include "core/comm/group.h"

namespace ferry {

bool nccl_available();
/// "2.28.9"; empty without NCCL.
std::string nccl_version();

/// All ranks of `control`, each on the GPU of its `device`. Collective. A rank that is missing is
/// an Error(ExitCode::Lost) and not a hang (core/comm/nccl_communicator.h).
std::unique_ptr<Group> make_nccl_group(Device& device, Control& control, const std::string& name);

}  // namespace ferry
