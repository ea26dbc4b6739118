#include "checkpoint/latest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/agreement.h"
#include "checkpoint/directory.h"
#include "core/check.h"

namespace ferry {

void verify_together(const Path& directory, bool from_device, Control& control,
                     FileSystem& file_system, int num_threads) {
  gather_together(control, "verify " + directory.filename().native(), [&] {
    const Checkpoint checkpoint = Checkpoint::open(directory, file_system);
    const int num_files = static_cast<int>(checkpoint.manifest().files.size());
    for (int i = 0; i < num_files; ++i) {
      const int reader = (i + std::max(1, control.size() / 2)) % control.size();
      if (reader == control.rank()) checkpoint.verify_file(i, from_device, nullptr, num_threads);
    }
    return std::string();
  });
}

Latest find_latest(const Path& run_dir, Control& control, FileSystem& file_system) {
  const std::string listing = decide_on_root(control, "list checkpoints", [&] {
    nlohmann::json unfinished = nlohmann::json::array();
    const std::vector<int64_t> steps = list_steps(file_system, run_dir);
    const Path folder = checkpoint_folder(run_dir);
    if (file_system.exists(folder)) {
      for (const DirectoryEntry& entry : file_system.list(folder)) {
        if (attempt_of_temporary(entry.name)) unfinished.push_back(entry.name);
      }
    }
    return nlohmann::json{{"steps", steps}, {"unfinished", unfinished}}.dump();
  });
  const auto json = nlohmann::json::parse(listing);
  Latest latest;
  json.at("unfinished").get_to(latest.unfinished);
  std::vector<int64_t> steps = json.at("steps");
  std::reverse(steps.begin(), steps.end());
  for (const int64_t step : steps) {
    const Path directory = checkpoint_folder(run_dir) / step_directory_name(step);
    try {
      verify_together(directory, false, control, file_system);
    } catch (const Error& error) {
      if (error.code() != ExitCode::Storage) throw;
      latest.rejected.push_back({directory, error.what()});
      continue;
    }
    latest.checkpoint = Checkpoint::open(directory, file_system);
    break;
  }
  return latest;
}

}  // namespace ferry
