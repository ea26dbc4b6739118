#pragma once

// A signal may interrupt a system call before it has done anything.

#include <cerrno>

namespace ferry {

/// The result of a system call, which is made again for as long as signals interrupt it.
template <class Call>
auto uninterrupted(Call&& call) {
  for (;;) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

}  // namespace ferry
