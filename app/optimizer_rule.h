#pragma once

// What [optimizer] says of the arithmetic of an update, and of the precision of its state.

#include <memory>

#include "app/optimizer_tables.h"
#include "optim/state_store.h"

namespace ferry {

std::unique_ptr<UpdateRule> make_update_rule(const OptimizerTable& optimizer);

/// Of the moments on the device.
MomentTypes moment_types(const OptimizerTable& optimizer);

}  // namespace ferry
