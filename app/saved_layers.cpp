#include "app/saved_layers.h"

#include <set>
#include <utility>

namespace ferry {

void SavedLayers::entering(int64_t layer) {
  // As many layers stay as will be there when backward begins.
  const int64_t num_stay = offloaded_.total_layers - offloaded_.num_layers;
  for (auto& [leaving, own] : layers_)
    if (leaving < position(layer) - num_stay) let_go(own);
}

void SavedLayers::saved(const RecordCost& record) {
  const int64_t layer = position(record.layer);
  for (const size_t tensor : record.tensors)
    if (tape_.on_device(tensor)) layer_of_[tensor] = layer;
  const int64_t previous = std::exchange(forward_layer_, layer);
  if (previous != layer && previous < offloaded_.num_layers) commit(previous);
}

void SavedLayers::loading(const RecordCost& record) {
  const int64_t layer = position(record.layer);
  if (std::exchange(backward_layer_, layer) != layer) reload(layer - 1);
}

void SavedLayers::commit(int64_t layer) {
  Layer& own = layers_[layer];
  for (const auto& [tensor, last] : layer_of_) {
    if (last != layer) continue;
    ledger_.add(Label::Layer, tape_.bytes(tensor));
    tape_.move_away(tensor, Label::Layer);
    own.tensors.push_back(tensor);
    own.leaving += tape_.bytes(tensor);
  }
}

void SavedLayers::let_go(Layer& layer) {
  ledger_.add(Label::Layer, -std::exchange(layer.leaving, 0));
}

void SavedLayers::reload(int64_t layer) {
  const auto found = layers_.find(layer);
  if (found == layers_.end()) return;
  let_go(found->second);
  for (const size_t tensor : found->second.tensors) tape_.start_back(tensor);
}

std::vector<OffloadGroup> layer_groups(const PassRecords& costs, int64_t num_layers) {
  std::map<int64_t, std::set<size_t>> tensors;
  std::set<size_t> rebuilt;
  for (const RecordCost& record : costs.records) {
    rebuilt.insert(record.rebuilt.begin(), record.rebuilt.end());
    if (record.layer < 0) continue;
    tensors[record.layer].insert(record.tensors.begin(), record.tensors.end());
  }
  std::vector<OffloadGroup> groups;
  for (const auto& [layer, own] : tensors) {
    OffloadGroup& group = groups.emplace_back(OffloadGroup{"layer", 0, layer < num_layers});
    for (const size_t tensor : own)
      if (!rebuilt.contains(tensor)) group.bytes += costs.tensors[tensor].bytes();
  }
  return groups;
}

}  // namespace ferry
