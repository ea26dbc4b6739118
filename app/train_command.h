#pragma once

#include <string>

namespace CLI {
class App;
}

namespace ferry {

/// ferry train CONFIG [table.key=value ...]; `exit_code` becomes that of the run.
void add_train_command(CLI::App& root, const std::string& command_line, int& exit_code);

}  // namespace ferry
