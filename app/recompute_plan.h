#pragma once

// What [recompute] means for the model and for the tape.

#include <set>

#include "app/memory_tables.h"
#include "app/model/gpt.h"

namespace ferry {

/// What is checkpointed: modules (granularity "selective") or whole layers ("full").
GptRecompute gpt_recompute(const RecomputeTable& table);

/// Whose outputs are dropped and rebuilt by the tape ("selective"): layernorm, moe_act,
/// moe_permute, mla_up_proj, as far as they are in recompute.modules.
std::set<Label> discarded_labels(const RecomputeTable& table);

}  // namespace ferry
