#pragma once

// What this program is: version, git revision, backends and libraries built in, what it sees here.

#include <nlohmann/json.hpp>
#include <string>

namespace CLI {
class App;
}

namespace ferry {

std::string version_text();  // "0.1.0"
std::string git_revision();  // "1a2b3c4" or "1a2b3c4-dirty"; "unknown" outside a checkout
nlohmann::ordered_json version_json();

/// ferry version [--json]
void add_version_command(CLI::App& root);

}  // namespace ferry
