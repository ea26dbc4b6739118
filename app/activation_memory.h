#pragma once

// Where what forward saves for backward lives: what [activation_offload], [recompute],
// [layer_offload] and [paged_stash] say, as tape policies of the passes of a step.

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "app/run_config.h"
#include "core/allocator.h"
#include "offload/auto_offload.h"
#include "offload/layer_offload.h"
#include "offload/paged_stash.h"
#include "offload/pass_policy.h"
#include "pipeline/schedule.h"

namespace ferry {

/// activation_offload.modules; with an auto_budget and without names, all that the configuration
/// allows to choose from.
std::vector<std::string> offloaded_modules(const RunConfig& config);

/// The labels whose tensors each of the offloaded_modules() moves. core_attn is q, k and
/// v as attention reads them; if those are rebuilt from what came before their norm, it is that.
std::map<Label, std::string> offloaded_labels(const RunConfig& config);

/// [activation_offload] and [paged_stash] as movers of a rank take them.
ActivationOffloadConfig offload_config(const RunConfig& config, int pipeline_rank);
PagedStashConfig stash_config(const RunConfig& config);

/// The modules that metrics count the bytes of.
std::vector<std::string> moved_modules(const RunConfig& config);

/// The passes of a rank's schedule.
std::vector<PassAction> pass_actions(const std::vector<Action>& actions);

class ActivationMemory {
 public:
  /// For a rank of pipeline rank `pipeline_rank`. The device must outlive this.
  ActivationMemory(const RunConfig& config, Device& device, int pipeline_rank);

  /// A training step begins; `compute` is where its passes will run. `launches`: some are launches
  /// of a graph, and what that saves was counted when it was recorded, so the peaks stay.
  void begin_step(const std::vector<Action>& actions, Stream& compute, bool launches = false);
  /// The policy of a pass that is about to go forward, valid until the next step; null: everything
  /// stays.
  TapePolicy* policy(PassId pass);
  void end_step(Stream& compute);
  /// Passes as graphs: see ActivationMover.
  bool is_settled() const;
  void before_recording();
  void launched(PassId pass);
  void part_launched(Stream& compute);
  /// Tells movers of whole layers which block a training pass is in.
  void before_forward(Pass& pass, int block_idx);
  /// Null unless [layer_offload] is used.
  LayerOffload* layer_offload() { return layers_; }
  /// Null unless [paged_stash] is used.
  PagedStash* paged_stash() { return stash_; }

  /// Bytes on the device of saved tensors, by module, until their copies to the host are done and
  /// from the begin of their copies back; peaks are of the last step.
  MemoryLedger& saved_bytes() { return saved_bytes_; }
  const MemoryLedger& saved_bytes() const { return saved_bytes_; }
  /// What the last step moved. Waits for its copies.
  TrafficByModule traffic() const;
  /// Of activation offload, by module: see resident_bytes(). Unset until the plan is fixed.
  std::optional<std::map<std::string, int64_t>> summary() const;
  /// What an automatic budget chose, predicted and achieved; empty without one, and until a step
  /// has followed the choice. Waits for the step.
  std::string auto_report() const;

 private:
  MemoryLedger saved_bytes_;
  std::set<Label> discarded_;
  std::vector<std::unique_ptr<ActivationMover>> movers_;
  const ActivationOffload* offload_ = nullptr;  // one of them, or part of one
  const AutoOffload* auto_ = nullptr;           // one of them
  LayerOffload* layers_ = nullptr;              // one of them
  PagedStash* stash_ = nullptr;                 // one of them
  int64_t peak_without_offload_ = 0;            // of saved_bytes_, in the step that auto_ timed
  std::map<PassId, PassPolicy> policies_;
};

}  // namespace ferry
