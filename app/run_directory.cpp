#include "app/run_directory.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "app/version.h"
#include "core/check.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream out(path);
  out << text << std::flush;
  if (!out)
    fail(ExitCode::Storage, "error: cannot write ", path.string(),
         "\n  why : no permission, or the disk is full\n  try : another run.dir");
}

fs::path name_aside(const fs::path& dir) {
  fs::path aside;
  for (int i = 1; aside.empty() || fs::exists(aside); ++i)
    aside = dir.string() + ".before-" + std::to_string(i);
  return aside;
}

}  // namespace

bool holds_a_run(const fs::path& dir) {
  for (const char* trace : {"metrics.jsonl", "resolved.toml", "events.jsonl", "LATEST"})
    if (fs::exists(dir / trace)) return true;
  return fs::exists(dir / "ckpt") && !fs::is_empty(dir / "ckpt");
}

std::string prepare_run_directory(const fs::path& dir, bool fresh, bool resuming) {
  std::string aside;
  try {
    if (holds_a_run(dir) && !resuming) {
      if (!fresh)
        fail(ExitCode::Usage, "error: ", dir.string(),
             " holds an earlier run, and there is no checkpoint to resume from\n",
             "  why : starting from scratch there would mix two runs\n",
             "  try : run.fresh=true (the old directory is renamed, not deleted), or another "
             "run.dir");
      const fs::path old = name_aside(dir);
      fs::rename(dir, old);
      aside = old.string();
    }
    fs::create_directories(dir / "log");
  } catch (const fs::filesystem_error& error) {
    fail(ExitCode::Storage, "error: cannot prepare the run directory ", dir.string(),
         "\n  why : ", error.code().message(),
         "\n  try : another run.dir, or check its permissions");
  }
  return aside;
}

void describe_run(const fs::path& dir, const RunConfig& config, const Mesh& mesh,
                  const std::string& command_line, const std::string& backend) {
  write_text(dir / "resolved.toml", resolved_toml(config));
  write_text(dir / "command.txt", command_line + "\n");
  write_text(dir / "grid.txt", mesh.table());
  nlohmann::ordered_json env = version_json();
  env["backend"] = backend;
  env["ranks"] = mesh.world();
  env["started"] = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  write_text(dir / "env.json", env.dump(2) + "\n");
}

}  // namespace ferry
