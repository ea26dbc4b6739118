#pragma once

namespace CLI {
class App;
}

namespace ferry {

/// ferry bench ops|copy|step ... [CONFIG] [--json], ferry bench adam [--json]: tables of measured
/// rates, each with its percentage of the ceiling measured in the same run.
void add_bench_command(CLI::App& root, int& exit_code);

}  // namespace ferry
