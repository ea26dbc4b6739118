#pragma once

// `ferry ckpt list|show|verify|hash|diff|reshard|prune`: looks at checkpoints, on any machine,
// without MPI or a GPU. Only reshard writes, a new directory, and only prune deletes.

#include <CLI/CLI.hpp>

namespace ferry {

/// Adds the subcommand `ckpt` to the program. Errors in checkpoints are
/// Error(ExitCode::Storage); so is a difference that diff finds.
void add_ckpt_command(CLI::App& root);

}  // namespace ferry
