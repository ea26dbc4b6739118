#pragma once

// The job that a test program runs in; present in programs of *_mpi_test.cpp, which
// tests/support/mpi_main.cpp starts.

#include "core/comm/runtime.h"

namespace ferry::testing {

Runtime& mpi_runtime();

}  // namespace ferry::testing
