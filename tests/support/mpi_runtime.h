#pragma once

// The job that a test program runs in; present in programs of *_mpi_test.cpp, which
// tests/support/mpi_main.cpp starts.

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "core/check.h"
#include "core/comm/runtime.h"

namespace ferry::testing {

Runtime& mpi_runtime();

/// The text of the Error(ExitCode::Lost) that `body` must throw.
inline std::string lost(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Lost) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

}  // namespace ferry::testing
