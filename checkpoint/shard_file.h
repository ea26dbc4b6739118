#pragma once

// One writer's file. HDF5 lays it out (contiguous, allocated at once, no fill) and is closed; then
// the slices are written straight from the caller's memory to where HDF5 says they belong, past the
// page cache, and the descriptor that was opened before all of this is synced. So the library never
// touches a tensor byte, errors name the system's reason, and a reader needs the manifest only; to
// everybody else it is ordinary HDF5.

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

/// Writes directory/name with all slices that are not empty and syncs it (not the directory), on
/// `num_threads` threads or as many as choose_io_threads says. They share the chunks of
/// `chunk_bytes`, a multiple of 8; each has memory for one. File and report are the same for any
/// number. The memory of a slice is read once, by chunks, through its source if it has one.
ShardReport write_shard(FileSystem& file_system, const Path& directory, const std::string& name,
                        std::span<const SliceToSave> slices, int64_t chunk_bytes,
                        int num_threads = 0);

struct ShardDataset {
  std::string name;
  DType dtype = DType::F32;
  Shape extent;
};

/// Makes `path` an HDF5 file with these datasets, whose elements are not written, and returns the
/// addresses of their first bytes. Sparse where the file system can.
std::vector<int64_t> lay_out_shard(const Path& path, std::span<const ShardDataset> datasets);

/// XXH3-128 of all bytes of the file outside `regions` (sorted, disjoint): the HDF5 structure.
Digest128 structure_digest(const File& file, std::span<const Region> regions);

}  // namespace ferry
