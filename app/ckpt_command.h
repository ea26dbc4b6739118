#pragma once

// `ferry ckpt list|show|verify|hash`: looks at checkpoints, on any machine, without MPI or a GPU.
// Nothing here writes.

#include <CLI/CLI.hpp>

namespace ferry {

/// Adds the subcommand `ckpt` to the program. Errors in checkpoints are Error(ExitCode::Storage).
void add_ckpt_command(CLI::App& root);

}  // namespace ferry
