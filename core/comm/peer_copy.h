#pragma once

// What the link between two GPUs of one host carries, without any library: the ceiling of
// communication between them.

#include <optional>

#include "core/device.h"

namespace ferry {

/// Bytes per second of a large copy, one way, from `device` to the memory of another GPU of this
/// host that it reaches directly; nullopt where this process sees none, on a CPU and without CUDA.
/// Takes 256 MiB of both GPUs for the time of the call. Error(ExitCode::Resource) if they have not
/// so much.
std::optional<double> measure_peer_copy(Device& device);

}  // namespace ferry
