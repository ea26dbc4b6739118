#pragma once

// A training run from its configuration to its exit code. Read trainer.cpp first: it is the table
// of contents of the project.

#include <memory>
#include <string>

#include "app/run_config.h"
#include "core/comm/runtime.h"

namespace ferry {

class Trainer {
 public:
  /// Everything that can be refused is refused here, before the first step: the run directory, the
  /// device, the data, the checkpoint. `config` is valid for runtime.size() ranks.
  Trainer(const RunConfig& config, Runtime& runtime, const std::string& command_line);
  ~Trainer();

  /// Trains to the end, or to where it is stopped; Done or Stopped. Errors are thrown.
  ExitCode run();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace ferry
