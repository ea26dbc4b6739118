#include "checkpoint/retention.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/directory.h"
#include "checkpoint/reader.h"
#include "core/check.h"

namespace ferry {
namespace {

/// Whether the checkpoint counts; if not, the reason becomes a warning.
bool is_valid(FileSystem& file_system, const Path& directory, RetentionReport& report) {
  try {
    Checkpoint::open(directory, file_system);
    return true;
  } catch (const Error& error) {
    report.warnings.push_back(concat(directory.filename().native(),
                                     " is not usable, so an older one is kept: ", error.what()));
    return false;
  }
}

/// Steps to delete, oldest first.
std::vector<int64_t> surplus(FileSystem& file_system, const Path& run_dir, int64_t newest, int keep,
                             RetentionReport& report) {
  std::vector<int64_t> steps = list_steps(file_system, run_dir);
  int num_kept = 0;
  auto oldest_kept = steps.end();
  for (auto step = steps.end(); step != steps.begin() && num_kept < keep;) {
    --step;
    if (*step > newest) continue;
    const Path directory = checkpoint_folder(run_dir) / step_directory_name(*step);
    if (*step != newest && !is_valid(file_system, directory, report)) continue;
    ++num_kept;
    oldest_kept = step;
  }
  if (num_kept < keep) return {};
  return {steps.begin(), oldest_kept};
}

}  // namespace

Path move_to_trash(FileSystem& file_system, const Path& run_dir, const std::string& name,
                   int64_t attempt) {
  const Path trash = trash_folder(run_dir);
  make_directories(file_system, trash);
  Path target = trash / fmt::format("{}.a{}", name, attempt);
  for (int i = 1; file_system.exists(target); ++i) {
    target = trash / fmt::format("{}.a{}.{}", name, attempt, i);
  }
  file_system.rename(checkpoint_folder(run_dir) / name, target);
  file_system.sync_directory(checkpoint_folder(run_dir));
  return target;
}

RetentionReport retire_checkpoints(FileSystem& file_system, const Path& run_dir, int64_t attempt,
                                   int64_t newest, int keep) {
  CHECK(keep >= 2, "keep ", keep, ": at least two checkpoints are kept");
  RetentionReport report;
  try {
    require_newest_attempt(file_system, run_dir, attempt);
    for (const int64_t step : surplus(file_system, run_dir, newest, keep, report)) {
      const std::string name = step_directory_name(step);
      move_to_trash(file_system, run_dir, name, attempt);
      report.removed.push_back(name);
    }
    const Path trash = trash_folder(run_dir);
    if (!file_system.exists(trash)) return report;
    for (const DirectoryEntry& entry : file_system.list(trash)) {
      if (entry.is_directory) remove_tree(file_system, trash / entry.name);
    }
  } catch (const Error& error) {
    report.warnings.push_back(concat("old checkpoints were not all deleted: ", error.what()));
  }
  return report;
}

}  // namespace ferry
