#pragma once

// ferry plan CONFIG [table.key=value ...] [--ranks N] [--link-gb-s X] [--tflops X] [--json]: what a
// run would be, from its configuration alone. Needs no GPU, no MPI and no network.

#include <cstdint>
#include <string>

#include "app/activation_forecast.h"
#include "app/run_config.h"

namespace CLI {
class App;
}

namespace ferry {

/// Adds the subcommand. Throws Error(ExitCode::Usage) for a configuration that is not legal.
void add_plan_command(CLI::App& root);

/// The plan as aligned text, and as one JSON object in bytes, operations and parameters.
/// Times and traffic in them are predicted at these rates, not measured.
std::string plan_text(const RunConfig& config, int64_t ranks, const MachineRates& rates = {});
std::string plan_json(const RunConfig& config, int64_t ranks, const MachineRates& rates = {});

}  // namespace ferry
