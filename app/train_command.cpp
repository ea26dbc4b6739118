#include "app/train_command.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <vector>

#include "app/config_file.h"
#include "app/job.h"
#include "app/launch_agreement.h"
#include "app/trainer.h"
#include "app/version.h"

namespace ferry {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> overrides;
};

}  // namespace

void add_train_command(CLI::App& root, const std::string& command_line, int& exit_code) {
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      root.add_subcommand("train", "Trains; alone, or on every rank of mpirun or srun");
  command->add_option("CONFIG", options->config, "Configuration file")->required();
  command->add_option("OVERRIDES", options->overrides, "table.key=value ...");
  command->footer(
      "Example: mpirun -n 2 ferry train configs/quickstart.toml run.steps=60\n"
      "Stop with a save: touch RUN/STOP, or send SIGUSR2 to mpirun. Exit codes: docs/errors.md");
  command->callback([options, command_line, &exit_code] {
    exit_code = run_job([&](Runtime& runtime) {
      const RunConfig config =
          load_valid_config(options->config, options->overrides, runtime.size());
      require_same_job(runtime.control(), runtime.host_name(),
                       version_text() + " (git " + git_revision() + ")", config);
      auto trainer = std::make_unique<Trainer>(config, runtime, command_line);
      try {
        return trainer->run();
      } catch (...) {
        // The end of streams waits for collectives that other ranks may never join.
        if (runtime.size() > 1) static_cast<void>(trainer.release());
        throw;
      }
    });
  });
}

}  // namespace ferry
