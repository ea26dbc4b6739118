#pragma once

// The bytes of the optimizer of a rank, on its device and on the host, from sizes alone: what
// optim/state_store.h and offload/hybrid_device_optimizer.h allocate.

#include <vector>

#include "app/model/cost_model.h"
#include "app/optimizer_tables.h"
#include "core/dtype.h"

namespace ferry {

/// What a rank updates of a parameter.
struct UpdatedPart {
  int64_t elements = 0;
  DType dtype = DType::F32;  // of the weight
  bool expert = false;
};

/// The part of the optimizer that the host has at the start: 0 without offload, and all of it
/// where the fraction is "auto", until that is chosen.
double first_fraction(const OptimizerOffloadTable& offload);

/// `parts` in the order of the model. The host has first_fraction() of them.
OptimizerBytes optimizer_bytes(const OptimizerTable& optimizer,
                               const std::vector<UpdatedPart>& parts);

}  // namespace ferry
