#pragma once

// clang-format off
// Every name that checkpoints give to files and directories, and the fence between starts of a run.
//
//   RUN/LATEST                        a hint for people: the newest acknowledged checkpoint
//   RUN/RUN_ID                        the name of the run, see run_id.h
//   RUN/ckpt/EPOCH.000007             created exclusively by start ("attempt") number 7
//   RUN/ckpt/step-00000060/           a published checkpoint:
//       shard-00000.h5 ... global.h5 MANIFEST.json
//   RUN/ckpt/step-00000090.a7.tmp/    one that attempt 7 is writing
//   RUN/ckpt/trash/                   what is about to be deleted

// clang-format on

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "core/comm/control.h"

namespace ferry {

inline constexpr const char* kGlobalFileName = "global.h5";
inline constexpr const char* kManifestFileName = "MANIFEST.json";

Path checkpoint_folder(const Path& run_dir);  // RUN/ckpt
Path latest_file(const Path& run_dir);
Path trash_folder(const Path& run_dir);
std::string step_directory_name(int64_t step);
std::string temporary_directory_name(int64_t step, int64_t attempt);
std::string aside_directory_name(int64_t step, int64_t attempt);
std::string shard_file_name(int rank);
/// Whether a manifest may name it: shard-NNNNN.h5 or global.h5.
bool is_checkpoint_file(const std::string& name);
/// The step of a published directory's name, if it is one.
std::optional<int64_t> step_of_directory(const std::string& name);
/// The attempt of a temporary directory's name, if it is one.
std::optional<int64_t> attempt_of_temporary(const std::string& name);

/// Published steps, ascending; empty where the run has none or does not exist.
std::vector<int64_t> list_steps(FileSystem& file_system, const Path& run_dir);

/// A start of a run that may save. Only the newest attempt can publish or delete.
struct Attempt {
  int64_t number = 0;
  std::vector<std::string> removed;   // temporary directories of dead attempts, for the log
  std::vector<std::string> restored;  // steps whose replacement was not finished, for the log
  std::string run;                    // the name of the run, see run_id.h
  std::vector<std::string> notices;   // about the storage, see preflight.h
};

/// Collective: makes RUN/ckpt, takes the next attempt number, removes what dead attempts were
/// writing and puts back what they had set aside, and names the run if it has no name yet. Probes
/// the storage, so that an unusable directory is found before training. Throws Error(Storage) on
/// every rank.
Attempt begin_attempt(const Path& run_dir, Control& control,
                      FileSystem& file_system = posix_file_system());

/// Throws Error(Storage) if a later attempt has begun.
void require_newest_attempt(FileSystem& file_system, const Path& run_dir, int64_t attempt);

}  // namespace ferry
