// The program `ferry`: one subcommand each in its own file.

#include <CLI/CLI.hpp>
#include <iostream>

#include "app/bench_command.h"
#include "app/ckpt_command.h"
#include "app/config_command.h"
#include "app/data_command.h"
#include "app/eval_command.h"
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

}  // namespace

int main(int argc, char** argv) {
  using namespace ferry;
  CLI::App root("Ferry pretrains Mixture-of-Experts GPT models with MPI", "ferry");
  root.require_subcommand(1);
  int exit_code = 0;
  add_train_command(root, join(argc, argv), exit_code);
  add_plan_command(root);
  add_config_command(root);
  add_data_command(root);
  add_ckpt_command(root);
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
