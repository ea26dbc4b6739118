#pragma once

// Fine-grained activation offload: what named modules save for backward waits in host memory.
//
// The first training step moves every group and measures it; then plan_offload() fixes which groups
// move, until the schedule changes. Beside the plan, the last group of a module in a pass that
// comes back next stays on the device (on one rank, and in the last stage of a pipeline, each pass
// does).
//
//   forward   a record is saved         its group waits for the module's end, then leaves (commit)
//   backward  a group was used          one group, the newest one that is away, starts back; when
//                                       the pass has none left, of the pass that comes back next
//
// So copies to the device run one group ahead of their use or more, and each use waits for its own
// copy. See offload_plan.h for the rules and their source.
//
// A pass that is recorded as a graph has its copies inside, and nothing from other passes: all end
// with it. Its launches move what the plan says of the recorded pass. Memory inside is let go where
// max_inflight makes the compute stream wait, and in backward.

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "offload/copy_engine.h"
#include "offload/offload_plan.h"

namespace ferry {

struct ActivationOffloadConfig {
  /// The module that a record's tensors belong to; labels that are absent stay on the device.
  std::map<Label, std::string> modules;
  int64_t min_tensor_elements = 1048576;  // smaller tensors stay
  /// Copies under way of each module; beyond it the compute stream waits for the oldest. Unset: it
  /// never waits, and memory is reused as copies end.
  std::optional<int64_t> max_inflight;
  OffloadRules rules;
  /// What backward needs before its copy to the host is done is used as it is. Off: bytes moved are
  /// the same in every step, whatever the speed of the link.
  bool takes_back = true;
  /// Where parts of the model are graphs: a group that is done leaves when the next graph was
  /// launched, or when its pass has gone forward. So the host enqueues these copies while the
  /// device is busy with the graph, and not between the kernels of the experts.
  bool waits_for_launch = false;
};

class ActivationOffload final : public ActivationMover {
 public:
  /// `ledger`: see CopyEngine.
  ActivationOffload(Device& device, ActivationOffloadConfig config, MemoryLedger* ledger = nullptr);
  ~ActivationOffload() override;

  void begin_step(std::span<const PassAction> actions, Stream& compute) override;
  TapePolicy& policy(PassId pass) override;
  void end_step(Stream& compute) override;
  TrafficByModule traffic() const override;
  bool is_settled() const override { return measured_; }
  void before_recording() override { engine_.settle(); }
  void launched(PassId pass) override;
  void part_launched(Stream& compute) override;

  /// Null until a step was measured.
  const std::vector<PassGroups>* plan() const { return measured_ ? &passes_ : nullptr; }
  /// By resident_bytes(); empty until a step was measured.
  std::map<std::string, int64_t> summary() const;
  /// Moves exactly these groups from the next step on, instead of those that the rules choose. The
  /// passes and groups must be those of plan().
  void set_plan(std::vector<PassGroups> passes);

 private:
  class Pass;
  /// The place of a pass in backward order.
  size_t position(PassId pass) const;
  PassGroups& groups_of(PassId pass);
  /// The pass that comes back next, or null if it has not begun.
  Pass* next_back();
  /// Groups that waited for a launch leave.
  void commit_waiting(Stream& compute);
  /// Gives memory back whose copy is done, and keeps the host from running far ahead.
  void keep_pace(Stream& compute);

  ActivationOffloadConfig config_;
  CopyEngine engine_;
  std::vector<PassAction> actions_;
  std::vector<PassGroups> passes_;  // in the order of backward
  bool measured_ = false;
  bool measuring_ = false;
  size_t backward_cursor_ = 0;  // passes before it have begun backward
  std::map<PassId, std::unique_ptr<Pass>> running_;
  bool has_launches_ = false;                      // in this step
  std::vector<std::pair<Pass*, size_t>> waiting_;  // groups that leave after the next launch
  std::deque<Event> lead_;  // of commits, so that the host does not run far ahead of the device
};

}  // namespace ferry
