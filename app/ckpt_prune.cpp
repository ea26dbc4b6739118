#include "app/ckpt_prune.h"

#include <algorithm>

#include "checkpoint/directory.h"
#include "checkpoint/reader.h"
#include "checkpoint/retention.h"
#include "core/check.h"

namespace ferry {
namespace {

/// In names in the trash, where others have the number of the start that deleted them.
constexpr int64_t kByHand = 0;

/// Why it does not verify, or an empty string.
std::string defect_of(FileSystem& file_system, const Path& directory) {
  try {
    Checkpoint::open(directory, file_system).verify();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

std::vector<PruneDecision> plan_prune(FileSystem& file_system, const Path& run_dir, int64_t keep) {
  if (keep < 2)
    fail(ExitCode::Usage, "error: --keep ", keep,
         "\n  why : at least two checkpoints are kept, for the newest may get damaged\n  try : "
         "--keep 2");
  std::vector<int64_t> steps = list_steps(file_system, run_dir);
  std::reverse(steps.begin(), steps.end());
  std::vector<PruneDecision> plan;
  int64_t num_kept = 0;
  for (const int64_t step : steps) {
    PruneDecision decision;
    decision.name = step_directory_name(step);
    if (num_kept == keep) {
      decision.fate = PruneDecision::Fate::Remove;
    } else {
      decision.reason = defect_of(file_system, checkpoint_folder(run_dir) / decision.name);
      if (decision.reason.empty())
        ++num_kept;
      else
        decision.fate = PruneDecision::Fate::Leave;
    }
    plan.push_back(std::move(decision));
  }
  return plan;
}

void prune(FileSystem& file_system, const Path& run_dir, const std::vector<PruneDecision>& plan) {
  for (auto decision = plan.rbegin(); decision != plan.rend(); ++decision) {
    if (decision->fate != PruneDecision::Fate::Remove) continue;
    move_to_trash(file_system, run_dir, decision->name, kByHand);
  }
  const Path trash = trash_folder(run_dir);
  if (!file_system.exists(trash)) return;
  for (const DirectoryEntry& entry : file_system.list(trash))
    if (entry.is_directory) remove_tree(file_system, trash / entry.name);
}

}  // namespace ferry
