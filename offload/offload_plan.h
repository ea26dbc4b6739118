#pragma once

// Which groups of saved tensors go to the host: a pure function of what the first training step
// measured, so it can be read, printed and tested without a device.
//
// A *group* is one execution of one named module (core_attn, expert_fc1, ...) in one layer of one
// pass; its bytes are those of its tensors that are large enough to move. The rules, applied in
// this order, are those of Megatron-LM's fine-grained activation offloading:
//   1. margin: the largest number of distinct modules in a pass;
//   2. keep-last: of each module, the last group of the pass that comes back first stays on the
//      device, for as many modules as the margin, because backward needs it at once;
//   3. delta: pipeline rank r keeps the first groups, in the order of forward, of the passes that
//      come back first, until r * delta bytes stay;
//   4. fraction: of the n groups of each pass that are left and have bytes, the last
//      trunc(n * (1 - fraction)) stay.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "offload/activation_mover.h"

namespace ferry {

struct OffloadGroup {
  std::string module;
  int64_t bytes = 0;
  bool offload = true;
};

/// The groups of a pass, in the order in which forward starts them.
struct PassGroups {
  PassId pass;
  std::vector<OffloadGroup> groups;
};

struct OffloadRules {
  double fraction = 1.0;
  int64_t delta_bytes = 0;  // delta_bytes_across_pipeline
  int pipeline_rank = 0;
};

/// Sets `offload` of every group of `passes`, which are in the order of their backward passes.
/// Returns the margin.
int plan_offload(std::vector<PassGroups>& passes, const OffloadRules& rules);

/// Bytes by module that are on the host at once when the first backward pass begins in the steady
/// state of 1F1B: of the passes in the order of forward, up to and including the one that comes
/// back first. Modules that move nothing are left out.
std::map<std::string, int64_t> resident_bytes(std::span<const PassAction> actions,
                                              const std::vector<PassGroups>& passes);

/// The same of several ranks as a table in MB (2^20 bytes): a row per rank, a column per module in
/// alphabetical order, and totals.
std::string offload_summary(const std::vector<std::map<std::string, int64_t>>& ranks);

/// A norm's input is needed again when the branch that it begins comes back, if the norm's output
/// is rebuilt. So it leaves after the branch, and comes back first; all other groups leave when
/// their module is done.
inline bool begins_branch(Label label) {
  return label == Label::AttnNorm || label == Label::MlpNorm;
}
inline bool ends_branch(Label label) { return begins_branch(label) || label == Label::FinalNorm; }

/// The passes of a schedule in the order of their backward passes.
std::vector<PassId> backward_order(std::span<const PassAction> actions);

}  // namespace ferry
