#pragma once

// global.h5: the view of a checkpoint for people and stock tools. Every tensor is one virtual
// dataset over the shards beside it, so h5ls, h5dump and h5py show it whole under its global name;
// scalars are below /state. Loading does not need this file.

#include <map>
#include <string>

#include "checkpoint/file_system.h"
#include "checkpoint/manifest.h"

namespace ferry {

/// Writes directory/global.h5 from `manifest` (files and tensors complete) and syncs it.
/// `descriptions` maps names of groups, tensors or "state/..." scalars to one line about meaning
/// and unit, stored as the attribute "description"; names that do not exist are ignored. `aliases`
/// maps a second name of a group to the first: both show the same tensors.
StoredFile write_global_file(FileSystem& file_system, const Path& directory,
                             const Manifest& manifest,
                             const std::map<std::string, std::string>& descriptions,
                             const std::map<std::string, std::string>& aliases = {});

}  // namespace ferry
