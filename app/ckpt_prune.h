#pragma once

// Retention by hand: what training does after each save, for a run whose disk is full or that is
// done. Safe beside a run that is training.

#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace ferry {

/// What becomes of one directory of RUN/ckpt.
struct PruneDecision {
  enum class Fate { Keep, Remove, Leave };
  std::string name;  // of the step's directory
  Fate fate = Fate::Keep;
  std::string reason;  // of Leave: why it does not verify
};

/// Decides about the checkpoints of a run, newest first. Reads every byte of them until `keep` have
/// verified: these are kept. What is older goes, intact or not. One that does not verify and is not
/// older than all that are kept is left, for it may be what somebody wants to repair. If fewer than
/// `keep` verify, nothing goes. Error(ExitCode::Usage) if keep is below 2.
std::vector<PruneDecision> plan_prune(FileSystem& file_system, const Path& run_dir, int64_t keep);

/// Renames what the plan removes into RUN/ckpt/trash, oldest first, so that a directory that is
/// half deleted is never taken for a checkpoint, and then empties the trash.
/// Error(ExitCode::Storage) names what could not be removed; the same command goes on from there.
void prune(FileSystem& file_system, const Path& run_dir, const std::vector<PruneDecision>& plan);

}  // namespace ferry
