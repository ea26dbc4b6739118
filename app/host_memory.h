#pragma once

// Whether the host has the memory that offload and saves beside training need, asked before
// anything is allocated: memory that is missing is otherwise noticed by the kernel, which kills the
// process without a word.

#include <cstdint>
#include <filesystem>
#include <string>

#include "app/model/cost_model.h"
#include "app/run_config.h"
#include "core/comm/control.h"

namespace ferry {

struct HostMemory {
  int64_t available = 0;  // bytes
  std::string source;     // what said so: "/proc/meminfo"
};

/// What this process may still allocate on its host: the least of what the host has available and
/// what each control group that the process is in leaves of its limit, where the cache of files
/// counts as free. Reads `proc`/meminfo, `proc`/self/cgroup and, below `cgroup`, the groups of
/// version 2 or of the memory controller of version 1. A group that is not below it (the process is
/// in a container) is left out.
HostMemory available_host_memory(const std::filesystem::path& proc = "/proc",
                                 const std::filesystem::path& cgroup = "/sys/fs/cgroup");

/// Empty if the ranks of a host, which together need `bytes` of its memory, find it. Else what is
/// needed, by the parts of `one` of them, what there is, and what to do.
std::string host_memory_problem(const MemoryEstimate& one, int64_t bytes, int64_t num_ranks,
                                const HostMemory& host, const RunConfig& config);

/// Collective; before any rank allocates what `own` counts on the host. Error(ExitCode::Resource)
/// if the ranks of this host, `host_name`, need more than there is.
void require_host_memory(const MemoryEstimate& own, const RunConfig& config,
                         const std::string& host_name, Control& control,
                         const HostMemory& host = available_host_memory());

}  // namespace ferry
