#pragma once

// The name of a run that no other has: 128 random bits, made once for a run directory and kept in
// RUN/RUN_ID. Starts that go on in the directory have the same; one that goes on elsewhere has
// another, and its first checkpoint names the run that it came from.

#include <string>

#include "checkpoint/file_system.h"

namespace ferry {

/// Of checkpoints that were written before runs had names.
inline const std::string kUnknownRun(32, '0');

/// RUN/RUN_ID.
Path run_id_file(const Path& run_dir);

/// Whether the text is 32 lower-case hexadecimal digits.
bool is_run_id(const std::string& text);

/// Reads RUN/RUN_ID. Throws Error(Storage) if it is absent or holds something else.
std::string read_run_id(FileSystem& file_system, const Path& run_dir);

/// Reads RUN/RUN_ID, or makes it where it is absent, through a file whose name has the number of
/// the attempt. RUN must exist.
std::string make_run_id(FileSystem& file_system, const Path& run_dir, int64_t attempt);

}  // namespace ferry
