#pragma once

// Whether the ranks of a job are the same program with the same configuration. A host with an old
// binary or file would otherwise train something else, or hang in a collective that others skip.

#include <string>

#include "app/run_config.h"
#include "core/comm/control.h"

namespace ferry {

/// Collective, and to be called before anything else that is. `program` is the version and the
/// revision of this binary. Throws the same Error(ExitCode::Usage) on all ranks if one differs from
/// rank 0: it names the first such rank, its host and what differs.
void require_same_job(Control& control, const std::string& host, const std::string& program,
                      const RunConfig& config);

}  // namespace ferry
