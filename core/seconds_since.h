#pragma once

#include <chrono>

namespace ferry {

/// Seconds of the host's steady clock from `start` until now.
inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace ferry
