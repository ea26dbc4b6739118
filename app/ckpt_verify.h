#pragma once

#include "checkpoint/reader.h"

namespace ferry {

/// Opens a checkpoint and checks every byte of it against its digests. Error(ExitCode::Storage)
/// says which file is damaged and where, HDF5's own bytes included; of files that are missing or
/// cut short also which tensors, and which bytes of the file, are lost with them.
Checkpoint verify_checkpoint(const Path& directory);

}  // namespace ferry
