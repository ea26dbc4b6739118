// The program `ferry`: one subcommand each in its own file.

#include <CLI/CLI.hpp>
#include <iostream>

#include "app/bench_command.h"
#include "app/ckpt_command.h"
#include "app/config_command.h"
#include "app/data_command.h"
#include "app/eval_command.h"
#include "app/export_command.h"
#include "app/import_command.h"
#include "app/job.h"
#include "app/plan_command.h"
#include "app/train_command.h"
#include "app/version.h"

namespace {

std::string join(int argc, char** argv) {
  std::string line;
  for (int i = 0; i < argc; ++i) line += (i ? " " : "") + std::string(argv[i]);
  return line;
}

// What a person typed wrong, and what would be right. CLI11 complains that a subcommand is missing
// where one is misspelt.
std::string usage_error(const CLI::App* root, const CLI::Error& error) {
  const CLI::App* command = root;
  std::string name = "ferry";
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().back();
    name += " " + command->get_name();
  }
  const bool chooses = command->get_require_subcommand_min() > 0;
  const std::vector<std::string> left = root->remaining(true);
  std::string text = "error: ";
  if (chooses && !left.empty())
    text += "there is no command '" + (name + " " + left.front()).substr(6) + "'";
  else if (chooses)
    text += name + " needs a command";
  else
    text += std::string(error.what());
  std::string names;
  for (const CLI::App* one : command->get_subcommands(nullptr))
    names += (names.empty() ? "" : ", ") + one->get_name();
  if (chooses) text += "\n  why : the commands are " + names;
  return text + "\n  try : " + name + " --help\n";
}

}  // namespace

int main(int argc, char** argv) {
  using namespace ferry;
  CLI::App root("Ferry pretrains Mixture-of-Experts GPT models with MPI", "ferry");
  root.require_subcommand(1);
  root.failure_message(usage_error);
  int exit_code = 0;
  add_train_command(root, join(argc, argv), exit_code);
  add_plan_command(root);
  add_config_command(root);
  add_data_command(root);
  add_ckpt_command(root);
  add_export_command(root);
  add_import_command(root);
  add_eval_command(root, exit_code);
  add_bench_command(root, exit_code);
  add_version_command(root);
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = root.exit(error);
    return code == 0 ? 0 : static_cast<int>(ExitCode::Usage);
  } catch (const Error& error) {
    print_error(error, 0, 1);
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << "internal error: " << error.what() << std::endl;
    return static_cast<int>(ExitCode::Internal);
  }
  return exit_code;
}
