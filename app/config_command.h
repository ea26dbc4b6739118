#pragma once

// ferry config CONFIG [table.key=value ...] [--resolved]

namespace CLI {
class App;
}

namespace ferry {

/// Adds the subcommand: it prints what the file, the command line and other values decide, with the
/// origin of each value; with --resolved the defaults too. Throws Error(ExitCode::Usage) for one
/// that is not legal.
void add_config_command(CLI::App& root);

}  // namespace ferry
