#pragma once

// The frame of everything that runs on all ranks: starts MPI where a launcher did, and turns an
// exception of any rank into one message and the exit code of the whole job.

#include <functional>

#include "core/check.h"
#include "core/comm/runtime.h"

namespace ferry {

/// Runs `body` on this rank. An Error that every rank throws alike (Usage) is printed by rank 0
/// alone; any other is printed with its rank and ends the job at once.
int run_job(const std::function<ExitCode(Runtime&)>& body);

/// Prints an error to standard error: the text, and nothing else for a user's mistake; with the rank
/// in a job of many.
void print_error(const Error& error, int rank, int size);

}  // namespace ferry
