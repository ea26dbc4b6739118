#include "app/ckpt_find.h"

#include <fmt/format.h>

#include <cstdio>

#include "checkpoint/directory.h"
#include "checkpoint/latest.h"
#include "core/check.h"

namespace ferry {

Path existing_directory(const std::string& named) {
  Path path = named;
  if (!path.has_filename() && path.has_relative_path()) path = path.parent_path();
  if (!posix_file_system().exists(path))
    fail(ExitCode::Storage, named, " does not exist: name a run directory or a checkpoint");
  return path;
}

bool names_checkpoint(const Path& path) {
  const std::string name = path.filename();
  return posix_file_system().exists(path / kManifestFileName) || step_of_directory(name) ||
         attempt_of_temporary(name);
}

Path run_directory_of(const Path& path) {
  return path.filename() == "ckpt" ? path.parent_path() : path;
}

Checkpoint find_checkpoint(const std::string& named, Control& control) {
  const Path path = existing_directory(named);
  if (names_checkpoint(path)) return Checkpoint::open(path);
  Latest latest = find_latest(run_directory_of(path), control);
  for (const Rejected& rejected : latest.rejected)
    if (control.rank() == 0)
      fmt::print(stderr, "rejected {}: {}\n", rejected.directory.native(), rejected.reason);
  if (!latest.checkpoint)
    fail(ExitCode::Storage, path.native(), " holds no ", latest.rejected.empty() ? "" : "intact ",
         "checkpoint: name a run directory (the one with ckpt/ in it) or a checkpoint (step-...)");
  return *std::move(latest.checkpoint);
}

Checkpoint find_checkpoint(const std::string& named) {
  SoloControl control;
  return find_checkpoint(named, control);
}

}  // namespace ferry
