#pragma once

#include <gtest/gtest.h>

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

/// The same; fails the test unless there is an error, with this exit code.
inline std::string error_of(ExitCode code, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "no error";
}

}  // namespace ferry::testing
