#include "app/saved_groups.h"

#include <algorithm>
#include <set>

namespace ferry {
namespace {

// As in ActivationOffload: a norm's tensors leave when the branch that it begins ends.
bool begins_branch(Label label) { return label == Label::AttnNorm || label == Label::MlpNorm; }
bool ends_branch(Label label) { return begins_branch(label) || label == Label::FinalNorm; }

bool is_of_experts(Label label) {
  return label == Label::ExpertFc1 || label == Label::MoeAct || label == Label::ExpertFc2 ||
         label == Label::FusedGroupMlp;
}

}  // namespace

void SavedForward::run(bool backward_is_next) {
  const std::vector<RecordCost>& records = costs_.records;
  int64_t last_layer_with_experts = -1;
  for (const RecordCost& record : records)
    if (is_of_experts(record.label)) last_layer_with_experts = record.layer;
  for (size_t i = 0; i < records.size(); ++i) {
    tape_.save(records[i]);
    saved(records[i]);
    const int64_t layer = records[i].layer;
    if (layer < 0 || (i + 1 < records.size() && records[i + 1].layer == layer)) continue;
    if (layer < moved_.first_layers) move_layer(layer);
    const bool stays = backward_is_next && layer == last_layer_with_experts;
    if (moved_.stash && !stays) stash_layer(layer);
  }
  for (const Pending& pending : std::exchange(pending_, {})) commit(pending);
}

void SavedForward::saved(const RecordCost& record) {
  const auto found = moved_.modules.find(record.label);
  const bool is_moved = found != moved_.modules.end();
  const auto leaves = [&](const Pending& pending) {
    if (begins_branch(pending.label)) return ends_branch(record.label);
    return !is_moved || found->second != groups_[pending.group].module || ends_branch(record.label);
  };
  for (const Pending& pending : pending_)
    if (leaves(pending)) commit(pending);
  std::erase_if(pending_, leaves);
  if (!is_moved) return;
  if (pending_.empty() || groups_[pending_.back().group].module != found->second) {
    pending_.push_back({record.label, groups_.size(), {}});
    groups_.push_back({found->second, 0, true});
  }
  std::vector<size_t>& tensors = pending_.back().tensors;
  tensors.insert(tensors.end(), record.tensors.begin(), record.tensors.end());
}

bool SavedForward::owns(const std::string& module, size_t tensor) const {
  const auto found = moved_.modules.find(tape_.label(tensor));
  return found != moved_.modules.end() && found->second == module;
}

void SavedForward::commit(const Pending& pending) {
  OffloadGroup& group = groups_[pending.group];
  std::set<size_t> leaving;
  for (const size_t tensor : pending.tensors)
    if (tape_.on_device(tensor) && owns(group.module, tensor) &&
        costs_.tensors[tensor].numel >= moved_.min_tensor_elements)
      leaving.insert(tensor);
  for (const size_t tensor : leaving) group.bytes += costs_.tensors[tensor].bytes;
  group.offload = !leaving.empty() && moves_(pending.group);
  if (!group.offload) return;
  for (const size_t tensor : leaving) tape_.move_away(tensor);
}

void SavedForward::move_layer(int64_t layer) {
  for (const RecordCost& record : costs_.records)
    if (record.layer == layer)
      for (const size_t tensor : record.tensors)
        if (tape_.on_device(tensor)) tape_.move_away(tensor);
}

void SavedForward::stash_layer(int64_t layer) {
  for (const RecordCost& record : costs_.records)
    if (record.layer == layer && is_of_experts(record.label))
      for (const size_t tensor : record.tensors)
        if (tape_.on_device(tensor)) {
          stashed_ += costs_.tensors[tensor].bytes;
          tape_.move_away(tensor);
        }
}

std::vector<OffloadGroup> offload_groups(const PassRecords& costs, const MovedTensors& moved) {
  SavedLedger ledger;
  SavedTape tape(costs.tensors, ledger);
  SavedForward forward(costs, moved, tape, [](size_t) { return true; });
  forward.run(false);
  std::vector<OffloadGroup> groups = forward.groups();
  for (OffloadGroup& group : groups) group.offload = true;
  return groups;
}

std::vector<OffloadGroup> layer_groups(const PassRecords& costs, int64_t first_layers) {
  std::map<int64_t, std::set<size_t>> tensors;
  std::set<size_t> rebuilt;
  for (const RecordCost& record : costs.records) {
    rebuilt.insert(record.rebuilt.begin(), record.rebuilt.end());
    if (record.layer < 0) continue;
    tensors[record.layer].insert(record.tensors.begin(), record.tensors.end());
  }
  std::vector<OffloadGroup> groups;
  for (const auto& [layer, own] : tensors) {
    OffloadGroup& group = groups.emplace_back(OffloadGroup{"layer", 0, layer < first_layers});
    for (const size_t tensor : own)
      if (!rebuilt.contains(tensor)) group.bytes += costs.tensors[tensor].bytes;
  }
  return groups;
}

}  // namespace ferry
