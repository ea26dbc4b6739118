#pragma once

// ferry plan CONFIG [table.key=value ...] [--ranks N] [--link-gb-s X] [--tflops X] [--device-gib X]
// [--json]: what a run would be, from its configuration alone. Needs no GPU, no MPI and no network.

#include <cstdint>
#include <string>

#include "app/host_memory.h"
#include "app/plan.h"
#include "app/run_config.h"

namespace CLI {
class App;
}

namespace ferry {

/// Adds the subcommand. Throws Error(ExitCode::Usage) for a configuration that is not legal.
void add_plan_command(CLI::App& root);

/// What `ferry plan` says to standard error: a rank needs more host memory than this host has.
/// Empty if it does not. Of several ranks on a host each needs its own.
std::string host_warning(const Plan& plan, const RunConfig& config, const HostMemory& host);

/// The plan as aligned text, and as one JSON object in bytes, operations and parameters.
/// Times and traffic in them are predicted at these rates, not measured.
std::string plan_text(const RunConfig& config, int64_t ranks, const MachineRates& rates = {});
std::string plan_json(const RunConfig& config, int64_t ranks, const MachineRates& rates = {});

}  // namespace ferry
