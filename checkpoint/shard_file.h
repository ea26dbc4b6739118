#pragma once

// One writer's file. HDF5 lays it out (contiguous, allocated at once, no fill) and is closed; then
// the slices are written straight from the caller's memory to where HDF5 says they belong, through
// the same descriptor that is synced. So the library never touches a tensor byte, errors name the
// system's reason, and a reader needs the manifest only; to everybody else it is ordinary HDF5.

#include <span>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/manifest.h"
#include "checkpoint/slice.h"

namespace ferry {

struct ShardReport {
  StoredFile file;
  std::vector<StoredTensor> tensors;  // one slice each, `digest` is its part, file_idx is open
  double write_seconds = 0;           // digests included
  double sync_seconds = 0;
};

/// Writes directory/name with all slices that are not empty and syncs it (not the directory).
ShardReport write_shard(FileSystem& file_system, const Path& directory, const std::string& name,
                        std::span<const SliceToSave> slices, int64_t chunk_bytes);

/// XXH3-128 of all bytes of the file outside `regions` (sorted, disjoint): the HDF5 structure.
Digest128 structure_digest(const File& file, std::span<const Region> regions);

}  // namespace ferry
