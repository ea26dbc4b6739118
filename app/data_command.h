#pragma once

// `ferry data`: make, describe, verify, print and merge token files.

#include <CLI/CLI.hpp>

namespace ferry {

/// Adds `data build|info|check|dump|merge`. They run while `root` parses; their errors are thrown
/// as Error through CLI::App::parse.
void add_data_command(CLI::App& root);

}  // namespace ferry
