#pragma once

// What a rank's saved activations take on its device, predicted from the configuration alone: its
// schedule with the records of each pass (app/model/saved_records.h), under the policies of
// [recompute], [activation_offload], [layer_offload] and [paged_stash].

#include <optional>
#include <vector>

#include "app/run_config.h"
#include "app/saved_tape.h"
#include "offload/offload_budget.h"

namespace ferry {

/// What the machine does and has, per device.
struct MachineRates {
  double link_bytes_per_s = 55e9;      // between device and host, each way, both at once
  double compute_flop_per_s = 500e12;  // of forward and backward passes
  int64_t device_bytes = 0;            // 0: not known
};

struct ActivationForecast {
  /// Saved tensors on the device at their peak, by the module that they belong to.
  std::map<std::string, int64_t> by_module;
  /// The most of each module alone, maybe at different times.
  std::map<std::string, int64_t> peak_of_module;
  /// Device memory beside them: of copies to the host that are not done, of tensors that go to or
  /// come from the stash, and the buffers of layer offload.
  int64_t copies = 0;
  /// by_module in total if nothing moved.
  int64_t bytes_without = 0;
  /// The pools of the paged stash.
  int64_t stash = 0;
  /// Page-locked memory of the host: of tensors that are away, and pages of the stash.
  int64_t host = 0;
  /// Of fine-grained or layer offload, if there is any: what is planned, and what it does. Weights
  /// of layers are not in it.
  std::optional<BudgetChoice> offload;

  int64_t bytes() const;
};

/// Of the ranks of pipeline rank `pp`, with `ranks` ranks in all.
ActivationForecast forecast_activations(const RunConfig& config, int64_t ranks, int pp,
                                        const MachineRates& rates = {});

/// How this configuration shares modules between ranks, and what it does not keep.
ModuleShares module_shares(const ParallelTable& parallel);
SavedPolicies saved_policies(const RecomputeTable& table);

}  // namespace ferry
