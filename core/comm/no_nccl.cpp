// Stands in for nccl_group.cpp where Ferry is built without NCCL.

#include "core/check.h"
#include "core/comm/nccl_group.h"

namespace ferry {

bool nccl_available() { return false; }
std::string nccl_version() { return ""; }

std::unique_ptr<Group> make_nccl_group(Device&, Control&, const std::string& name) {
  fail(ExitCode::Resource, "group ", name,
       " needs NCCL, but this build of ferry has none: configure with -DFERRY_NCCL=ON");
}

}  // namespace ferry
