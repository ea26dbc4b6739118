#pragma once

namespace CLI {
class App;
}

namespace ferry {

/// ferry eval CKPT [--data PREFIX ...] [--batches N] [--logits FILE]: the validation loss of a
/// checkpoint, and logits for other programs to compare with.
void add_eval_command(CLI::App& root, int& exit_code);

}  // namespace ferry
