#include "app/config_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "app/config_file.h"
#include "app/run_config.h"
#include "core/check.h"

namespace ferry {

namespace {

struct Options {
  std::string config;
  std::vector<std::string> overrides;
  int64_t ranks = 0;
  bool resolved = false;
  bool markdown = false;
};

void run(const Options& options) {
  if (options.markdown) {
    std::cout << config_markdown();
    return;
  }
  if (options.config.empty()) {
    fail(ExitCode::Usage, "error: ferry config needs a configuration\n  --> command line\n",
         "  why : the first argument names the file\n  try : ferry config configs/quickstart.toml");
  }
  const RunConfig config = load_valid_config(options.config, options.overrides, options.ranks);
  std::cout << (options.resolved ? resolved_toml(config) : decided_toml(config)) << std::flush;
}

}  // namespace

void add_config_command(CLI::App& root) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = root.add_subcommand("config", "Prints the complete configuration");
  command->add_option("CONFIG", options->config, "Configuration file");
  command->add_option("OVERRIDES", options->overrides, "table.key=value ...");
  command
      ->add_option("--ranks", options->ranks,
                   "Ranks to validate for (default: the fewest that fit)")
      ->check(CLI::Range(int64_t{1}, int64_t{100000}));
  command->add_flag("--resolved", options->resolved, "The defaults too");
  command->add_flag("--markdown", options->markdown, "The documentation of all keys")->group("");
  command->footer("Example: ferry config configs/quickstart.toml run.steps=60 --resolved");
  command->callback([options] { run(*options); });
}

}  // namespace ferry
