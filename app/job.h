#pragma once

// The frame of everything that runs on all ranks: starts MPI where a launcher did, and turns an
// exception of any rank into one message and the exit code of the whole job.

#include <functional>

#include "core/check.h"
#include "core/comm/runtime.h"

namespace ferry {

/// Runs `body` on this rank; returns the exit code. An Error is printed and ends the job of all
/// ranks with its code; one that every rank throws alike is printed by rank 0 alone. Any other
/// exception counts as ExitCode::Internal.
int run_job(const std::function<ExitCode(Runtime&)>& body);

/// Prints an error to standard error: the text, and nothing else for a user's mistake; with the
/// rank in a job of many, unless it is about the command or the configuration, which all ranks
/// share.
void print_error(const Error& error, int rank, int size);

}  // namespace ferry
