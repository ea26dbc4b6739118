#include "app/saved_groups.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/check.h"

namespace ferry {

SavedGroups::SavedGroups(const OffloadedTensors& offloaded, SavedTape& tape, SavedLedger& ledger,
                         std::function<bool(size_t)> moves, std::function<void()> reload_other)
    : offloaded_(offloaded),
      tape_(tape),
      ledger_(ledger),
      moves_(std::move(moves)),
      reload_other_(std::move(reload_other)) {}

std::optional<std::string> SavedGroups::module_of(Label label) const {
  const auto found = offloaded_.modules.find(label);
  if (found == offloaded_.modules.end()) return std::nullopt;
  return found->second;
}

void SavedGroups::saved(const RecordCost& record) {
  const std::optional<std::string> module = module_of(record.label);
  for (const size_t group : std::vector<size_t>(pending_)) {
    const bool goes_on = module == groups_[group].module && !ends_branch(record.label);
    if (begins_branch(details_[group].label) ? ends_branch(record.label) : !goes_on) commit(group);
  }
  if (!module) return record_groups_.push_back(std::nullopt);
  if (pending_.empty() || groups_[pending_.back()].module != *module) {
    const std::optional<Label> label = label_of(*module);
    CHECK(label, "no module is called ", *module);
    pending_.push_back(groups_.size());
    groups_.push_back({*module, 0, true});
    details_.push_back({record.label, *label, {}});
  }
  std::vector<size_t>& tensors = details_[pending_.back()].tensors;
  tensors.insert(tensors.end(), record.tensors.begin(), record.tensors.end());
  record_groups_.push_back(pending_.back());
}

bool SavedGroups::leaves(size_t group, size_t tensor) const {
  return tape_.on_device(tensor) && module_of(tape_.label(tensor)) == groups_[group].module &&
         tape_.numel(tensor) >= offloaded_.min_tensor_elements;
}

void SavedGroups::commit(size_t index) {
  std::erase(pending_, index);
  OffloadGroup& group = groups_[index];
  Group& details = details_[index];
  std::sort(details.tensors.begin(), details.tensors.end());
  details.tensors.erase(std::unique(details.tensors.begin(), details.tensors.end()),
                        details.tensors.end());
  std::erase_if(details.tensors, [&](size_t tensor) { return !leaves(index, tensor); });
  for (const size_t tensor : details.tensors) group.bytes += tape_.bytes(tensor);
  group.offload = !details.tensors.empty() && moves_(index);
  if (!group.offload) return;
  // Its copies are under way together.
  for (const size_t tensor : details.tensors) {
    tape_.move_away(tensor, details.module);
    ledger_.add(details.module, tape_.bytes(tensor));
  }
  ledger_.add(details.module, -group.bytes);
  away_.push_back(index);
}

void SavedGroups::forward_done() {
  while (!pending_.empty()) commit(pending_.front());
  forward_done_ = true;
}

void SavedGroups::loading(const RecordCost&) {
  CHECK(!record_groups_.empty(), "a record is loaded that was not saved");
  const std::optional<size_t> group = record_groups_.back();
  record_groups_.pop_back();
  if (in_use_ && in_use_ != group) reload_next();
  in_use_ = group;
  if (group) std::erase(away_, *group);
}

void SavedGroups::backward_done() {
  if (std::exchange(in_use_, std::nullopt)) reload_next();
}

void SavedGroups::reload_next() {
  if (away_.empty())
    reload_other_();
  else
    reload_newest();
}

void SavedGroups::reload_newest() {
  if (!forward_done_ || away_.empty()) return;
  for (const size_t tensor : details_[away_.back()].tensors) tape_.start_back(tensor);
  away_.pop_back();
}

std::vector<OffloadGroup> offload_groups(const PassRecords& costs,
                                         const OffloadedTensors& offloaded) {
  SavedLedger ledger;
  SavedTape tape(costs.tensors, ledger);
  SavedGroups groups(
      offloaded, tape, ledger, [](size_t) { return true; }, [] {});
  save_pass(costs, tape, std::array<SavedMover*, 1>{&groups});
  std::vector<OffloadGroup> all = groups.groups();
  for (OffloadGroup& group : all) group.offload = true;
  return all;
}

}  // namespace ferry
