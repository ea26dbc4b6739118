#pragma once

#include <cstdint>

namespace ferry {

/// For tables that people read.
inline double gib(double bytes) { return bytes / (1 << 30); }
inline double gib(int64_t bytes) { return gib(static_cast<double>(bytes)); }

}  // namespace ferry
