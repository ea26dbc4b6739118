#pragma once

// optimizer.offload.fraction = "auto": how much of the optimizer the host should have, from rates
// that were measured in the first steps.

#include <vector>

#include "offload/optimizer_partition.h"

namespace ferry {

struct OptimizerRates {
  double host_elements_per_s = 0;  // of a whole update: copies, threads, copies
  double forward_s = 0;            // of the first micro-batch, which waits for the values
};

/// Of a device's memory, what the choice leaves free: for libraries, and for what later steps need
/// more than the first.
constexpr int64_t device_reserve(int64_t total_bytes) { return total_bytes / 50; }

enum class FractionGoal {
  Memory,  // the largest part on the device that fits
  Hidden,  // the smallest part on the device that leaves nothing of the update exposed
};

struct FractionChoice {
  double fraction = 1;
  int64_t host_elements = 0;
  int64_t device_bytes = 0;  // of state
  double update_s = 0;       // of the host's part, predicted
  double exposed_s = 0;      // of it, predicted
};

/// Of fractions 0, 0.01, ... 1 the smallest whose state fits `device_bytes` (Memory), or the
/// largest whose update is hidden, but never one that does not fit (Hidden). `bytes`: of the state
/// of each of `parameters` on the device. An update is exposed by what it takes longer than the
/// forward pass of the first micro-batch, which waits block by block.
FractionChoice choose_fraction(FractionGoal goal, const std::vector<const Parameter*>& parameters,
                               const std::vector<int64_t>& bytes, HostPart part,
                               int64_t device_bytes, const OptimizerRates& rates);

/// What this fraction takes.
FractionChoice predict_fraction(double fraction, const std::vector<const Parameter*>& parameters,
                                const std::vector<int64_t>& bytes, HostPart part,
                                const OptimizerRates& rates);

}  // namespace ferry
