#pragma once

// What the commands of `ferry ckpt` take as DIR: a run directory, its ckpt/, or one checkpoint.

#include <string>

#include "checkpoint/reader.h"

namespace ferry {

/// The path as named, without a slash at its end. Error(ExitCode::Storage) if nothing is there.
Path existing_directory(const std::string& named);

/// Whether a path has a manifest, or the name of a published or unfinished checkpoint.
bool names_checkpoint(const Path& path);

/// RUN for RUN and for RUN/ckpt.
Path run_directory_of(const Path& path);

/// The checkpoint itself, or the newest of a run that verifies; rejected ones are named on stderr.
/// Error(ExitCode::Storage) if there is none.
Checkpoint find_checkpoint(const std::string& named);

}  // namespace ferry
