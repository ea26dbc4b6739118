#pragma once

// What commands take as a checkpoint: a run directory, its ckpt/, or one checkpoint.

#include <string>

#include "checkpoint/reader.h"
#include "core/comm/control.h"

namespace ferry {

/// The path as named, without a slash at its end. Error(ExitCode::Storage) if nothing is there.
Path existing_directory(const std::string& named);

/// Whether a path has a manifest, or the name of a published or unfinished checkpoint.
bool names_checkpoint(const Path& path);

/// RUN for RUN and for RUN/ckpt.
Path run_directory_of(const Path& path);

/// The checkpoint itself, or the newest of a run that verifies; rank 0 names rejected ones on
/// stderr. Error(ExitCode::Storage) if there is none. Collective; the second is for one rank.
Checkpoint find_checkpoint(const std::string& named, Control& control);
Checkpoint find_checkpoint(const std::string& named);

}  // namespace ferry
