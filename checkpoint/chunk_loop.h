#pragma once

// The chunks of a file or of a whole checkpoint, on several threads. Disks want several requests at
// a time, and digests and copies take about as long as a fast disk.

#include <cstdint>
#include <functional>

#include "checkpoint/direct_write.h"

namespace ferry {

/// Threads for reading or writing so many bytes: two per CPU on which this thread may run, at most
/// 8, and one for little.
int choose_io_threads(int64_t bytes);

/// Calls work(i, buffer) once for each i in [0, count) on `num_threads` threads, which begin them
/// in this order. A thread has one buffer of `buffer_bytes` for all its calls, at a multiple of
/// kBlockBytes. Of several errors the one of the smallest i is thrown, the same one for any number
/// of threads; what comes after an error may be left out.
void for_each_chunk(int num_threads, int64_t count, int64_t buffer_bytes,
                    const std::function<void(int64_t i, char* buffer)>& work);

}  // namespace ferry
