#pragma once

// ferry import hf DIR OUT: a checkpoint from a Hugging Face model directory.

namespace CLI {
class App;
}

namespace ferry {

void add_import_command(CLI::App& root);

}  // namespace ferry
