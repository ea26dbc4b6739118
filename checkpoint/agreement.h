#pragma once

// Ranks fail together: a step that every rank takes either succeeds everywhere or throws the same
// error everywhere, so nobody waits for a rank that gave up.

#include <functional>
#include <string>
#include <vector>

#include "core/comm/control.h"

namespace ferry {

/// Collective. Runs `body` on every rank and gathers the texts on rank 0 (empty elsewhere). If any
/// rank failed, throws on all ranks the error of the first one, with its rank where there are
/// several.
std::vector<std::string> gather_together(Control& control, const std::string& what,
                                         const std::function<std::string()>& body);

/// Collective. Runs `body` on rank 0 and returns its text on every rank, or throws its error there.
std::string decide_on_root(Control& control, const std::string& what,
                           const std::function<std::string()>& body);

}  // namespace ferry
