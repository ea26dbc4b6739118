#pragma once

// The frame of everything that runs on all ranks: starts MPI where a launcher did, and turns an
// exception of any rank into one message and the exit code of the whole job.

#include <functional>

#include "core/check.h"
#include "core/comm/runtime.h"

namespace ferry {

/// Runs `body` on this rank; returns the exit code. An Error is printed and ends the job of all
/// ranks with its code; one that every rank throws alike is printed by rank 0 alone, and one that
/// only says that another rank is gone is printed if nobody says why it is gone. Any other
/// exception counts as ExitCode::Internal.
///
/// A rank of a launcher is a child of the process that was started, which watches it
/// (app/supervisor.h), unless FERRY_SUPERVISE is 0. Call it before anything starts a thread.
int run_job(const std::function<ExitCode(Runtime&)>& body);

/// Prints an error to standard error: the text, and nothing else for a user's mistake; in a job of
/// many also which rank on which host met it, and where it was (core/mark.h), unless rank 0 says it
/// of the command or the configuration, which all ranks share.
void print_error(const Error& error, int rank, int size, const std::string& host = "");

}  // namespace ferry
