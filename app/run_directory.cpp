#include "app/run_directory.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "app/version.h"
#include "checkpoint/directory.h"
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
  const fs::path metrics = dir / "metrics.jsonl";
  if (fs::exists(dir / "LATEST") || (fs::is_regular_file(metrics) && !fs::is_empty(metrics)))
    return true;
  if (!fs::is_directory(dir / "ckpt")) return false;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir / "ckpt"))
    if (entry.path().filename().string().starts_with("step-")) return true;
  return false;
}

std::string prepare_run_directory(const fs::path& dir, bool fresh, bool continues) {
  std::string aside;
  try {
    if (holds_a_run(dir) && (fresh || !continues)) {
      if (!fresh)
        fail(
            ExitCode::Usage, "error: ", dir.string(),
            " holds an earlier run, and this start would not continue it\n",
            "  why : it has no checkpoint to resume from, or another start was asked for; two runs "
            "would mix\n",
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

void refuse_other_branch(const fs::path& dir, int64_t step, bool fresh) {
  const std::vector<int64_t> steps = list_steps(posix_file_system(), dir);
  if (fresh || steps.empty() || steps.back() <= step) return;
  fail(ExitCode::Usage, "error: ", dir.string(), " has a checkpoint of step ", steps.back(),
       ", and this start begins at step ", step,
       "\n  --> checkpoint.resume, checkpoint.weights_only\n  why : the next start with "
       "checkpoint.resume=auto would take the later one for its own\n  try : another run.dir, or "
       "move the later checkpoints away");
}

bool is_inside(const fs::path& path, const fs::path& dir) {
  const fs::path relative =
      fs::weakly_canonical(path).lexically_relative(fs::weakly_canonical(dir));
  return !relative.empty() && *relative.begin() != "..";
}

void log_error(const fs::path& dir, int rank, const std::string& text) {
  std::ofstream(dir / "log" / fmt::format("rank-{:04}.log", rank), std::ios::app)
      << fmt::format("{:%Y-%m-%dT%H:%M:%SZ} ", fmt::gmtime(std::time(nullptr))) << text << '\n';
}

void write_offload_summary(const fs::path& dir, const std::string& text) {
  write_text(dir / "offload_summary.txt", text);
}

void describe_run(const std::filesystem::path& dir, const RunConfig& config, const Mesh& mesh,
                  const std::vector<std::string>& bindings, const std::string& command_line,
                  const std::string& backend) {
  write_text(dir / "resolved.toml", resolved_toml(config));
  write_text(dir / "command.txt", command_line + "\n");
  std::string grid = mesh.table();
  for (const std::string& binding : bindings) grid += binding + '\n';
  write_text(dir / "grid.txt", grid);
  nlohmann::ordered_json env = version_json();
  env["backend"] = backend;
  env["ranks"] = mesh.world();
  env["started"] = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  write_text(dir / "env.json", env.dump(2) + "\n");
}

}  // namespace ferry
