#pragma once

// What activation offload costs and saves in a step of one rank: its passes in the order of the
// schedule, one copy at a time in each direction beside them, and the rules of ActivationOffload.
// A pure function of sizes, times and rates, so a step can be predicted without a device, or with
// what another device measured.
//
// The work of a pass is spread evenly over its groups: of n groups, group i leaves at (i + 1) / n
// of forward, is needed at (n - 1 - i) / n of backward and used up half a share later. Waiting for
// other ranks is not simulated.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "offload/offload_plan.h"

namespace ferry {

/// Of one pass through a chunk, without offload.
struct PassSeconds {
  double forward = 0;
  double backward = 0;
};

struct OffloadConditions {
  std::vector<PassSeconds> chunks;  // by chunk (virtual stage) of the rank
  double d2h_bytes_per_s = 0;       // device to host
  double h2d_bytes_per_s = 0;       // host to device
  std::optional<int64_t>
      max_inflight;  // copies under way of each module in a pass; unset: any number
};

/// What of a plan really moves in a step: `passes` (in the order of the backward passes) with
/// `offload` cleared where the dynamic rule keeps a group (see activation_offload.h).
std::vector<PassGroups> moving_groups(std::span<const PassAction> actions,
                                      std::span<const PassGroups> passes);

/// A step as predicted. Bytes count the groups alone.
struct OffloadForecast {
  double step_s = 0;
  double step_without_s = 0;  // the same without offload
  double exposed_d2h_s = 0;   // compute waits for copies away, because of max_inflight
  double exposed_h2d_s = 0;   // compute waits for what backward needs
  int64_t peak_bytes = 0;     // the most on the device at once
  int64_t peak_without_bytes = 0;
  std::map<std::string, int64_t> peak_by_module;  // on the device at that peak
  TrafficByModule traffic;

  /// The part of the step without offload that offload adds to it.
  double cost() const { return step_without_s > 0 ? step_s / step_without_s - 1 : 0; }
  int64_t saved_bytes() const { return peak_without_bytes - peak_bytes; }
  int64_t d2h_bytes() const;
  int64_t h2d_bytes() const;
};

/// Simulates one step: `actions` in the order of the rank's schedule; `passes` has the groups of
/// each of their passes, in the order of the backward passes, with `offload` as planned; of them,
/// moving_groups() move. Rates must be above 0 if a group is to
/// move.
OffloadForecast simulate_offload(std::span<const PassAction> actions,
                                 std::span<const PassGroups> passes,
                                 const OffloadConditions& conditions);

}  // namespace ferry
