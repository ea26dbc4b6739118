#pragma once

// Which byte of a file is damaged that belongs to no slice. Its digest covers them all at once, but
// they follow from the manifest: the same HDF5 makes them again.

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "checkpoint/file_system.h"
#include "checkpoint/manifest.h"

namespace ferry {

struct StructureDamage {
  int64_t first_byte = 0;
  int64_t num_bytes = 0;  // that differ
};

/// The bytes of a shard or of global.h5 in `directory` that belong to no slice and are not what was
/// written. Makes the file again, without tensors, in a temporary directory; of `global.h5` with
/// these descriptions and aliases, if that gives its digest, else without the aliases. None if
/// nothing is damaged, or if the file cannot be made again: another version of HDF5 or of the
/// program wrote it. The file must have the size that the manifest says.
std::optional<StructureDamage> find_structure_damage(
    const Path& directory, const Manifest& manifest, int file_idx,
    const std::map<std::string, std::string>& descriptions,
    const std::map<std::string, std::string>& aliases);

}  // namespace ferry
