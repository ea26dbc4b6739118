#pragma once

// Fine-grained activation offload on sizes instead of tensors: which tensors of a pass leave the
// device, when they do, and when they come back; see offload/activation_offload.h.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app/saved_mover.h"
#include "offload/offload_plan.h"

namespace ferry {

struct OffloadedTensors {
  std::map<Label, std::string> modules;  // by label
  int64_t min_tensor_elements = 0;       // smaller ones stay
};

/// The groups of one pass. Copies take no time, so a group is gone when its module is done.
class SavedGroups final : public SavedMover {
 public:
  /// `moves(i)` tells whether group i of the pass leaves; `reload_other()` starts a group of the
  /// pass that comes back next. What is given by reference must outlive this.
  SavedGroups(const OffloadedTensors& offloaded, SavedTape& tape, SavedLedger& ledger,
              std::function<bool(size_t)> moves, std::function<void()> reload_other);

  void saved(const RecordCost& record) override;
  void forward_done() override;
  void loading(const RecordCost& record) override;
  void backward_done() override;
  /// The newest group that is away starts back, once the pass has gone forward.
  void reload_newest();

  /// All groups of the pass in order, with their bytes.
  const std::vector<OffloadGroup>& groups() const { return groups_; }

 private:
  struct Group {
    Label label;                  // of its first record
    Label module;                 // the label of its module's name
    std::vector<size_t> tensors;  // that may leave; then, that left
  };
  std::optional<std::string> module_of(Label label) const;
  void commit(size_t group);
  bool leaves(size_t group, size_t tensor) const;
  void reload_next();

  const OffloadedTensors& offloaded_;
  SavedTape& tape_;
  SavedLedger& ledger_;
  std::function<bool(size_t)> moves_;
  std::function<void()> reload_other_;
  std::vector<OffloadGroup> groups_;
  std::vector<Group> details_;   // of groups_
  std::vector<size_t> pending_;  // whose module is not done
  std::vector<size_t> away_;
  std::vector<std::optional<size_t>> record_groups_;  // of each record on the tape
  std::optional<size_t> in_use_;
  bool forward_done_ = false;
};

/// The groups of a pass; all of them are to move.
std::vector<OffloadGroup> offload_groups(const PassRecords& costs,
                                         const OffloadedTensors& offloaded);

}  // namespace ferry
