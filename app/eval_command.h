#pragma once

namespace CLI {
class App;
}

namespace ferry {

/// ferry eval CKPT [--data PREFIX ...] [--batches N]: the validation loss of a checkpoint.
void add_eval_command(CLI::App& root, int& exit_code);

}  // namespace ferry
