#pragma once

// ferry export hf CKPT OUT: the weights of a checkpoint as a Hugging Face model directory.

namespace CLI {
class App;
}

namespace ferry {

void add_export_command(CLI::App& root);

}  // namespace ferry
