#pragma once

#include <functional>
#include <string>

#include "core/check.h"

namespace ferry::testing {

/// The message of the error that `body` throws.
inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace ferry::testing
