#pragma once

// Copies of a few numbers to the host that do not queue behind others. A GPU has one copy engine
// for each direction, which takes copies in the order in which they were enqueued on whatever
// stream: a loss that the host waits for would come after gigabytes of gradients that happen to be
// on their way.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace ferry {

/// Copies larger than this are better off with the copy engine.
constexpr int64_t kSmallCopyBytes = 16 << 10;

/// Enqueues the copy, by a kernel that writes to the host's memory. `to`: page-locked host memory
/// of this process; `from`: of the stream's device, which is current. Any alignment.
void copy_small_to_host(void* to, const void* from, int64_t bytes, cudaStream_t stream);

}  // namespace ferry
