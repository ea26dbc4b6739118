#pragma once

// Whether a place can store checkpoints, asked at start and before each save, so that training does
// not find out when it is too late.

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace ferry {

/// Throws Error(Storage), with what is needed and what is left, unless `folder` has space for 1.2 *
/// `bytes` and `num_files` new files.
void require_storage(FileSystem& file_system, const Path& folder, int64_t bytes, int64_t num_files);

/// Writes, syncs, renames, reads back and removes a small file in `directory`. Throws
/// Error(Storage) if one of these fails or the file is not what was written.
void probe_storage(FileSystem& file_system, const Path& directory);

/// What a person should know of checkpoints on a file system of this type (see StorageStatus):
/// where they may be lost after they were acknowledged, and how to make writing faster. A sentence
/// each.
std::vector<std::string> storage_notices(const std::string& type, const Path& folder);

}  // namespace ferry
