#include "app/saved_tape.h"

#include <algorithm>

#include "core/check.h"

namespace ferry {

void SavedLedger::add(Label label, int64_t bytes) {
  const auto i = static_cast<size_t>(label);
  current_[i] += bytes;
  peaks_[i] = std::max(peaks_[i], current_[i]);
  total_ += bytes;
  if (total_ <= peak_) return;
  peak_ = total_;
  at_peak_ = current_;
}

std::map<std::string, int64_t> SavedLedger::named(const Bytes& bytes) {
  std::map<std::string, int64_t> names;
  for (size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] != 0) names[std::string(name_of(static_cast<Label>(i)))] = bytes[i];
  return names;
}

void SavedTape::count(size_t tensor, int64_t sign) {
  ledger_.add(held_.at(tensor).label, sign * tensors_[tensor].bytes);
}

bool SavedTape::on_device(size_t tensor) const {
  const auto found = held_.find(tensor);
  return found != held_.end() && found->second.on_device;
}

void SavedTape::save(const RecordCost& record) {
  for (const size_t tensor : record.tensors) {
    const auto [entry, is_new] = held_.try_emplace(tensor, Held{record.label});
    Held& held = entry->second;
    if (!is_new && held.on_device) count(tensor, -1);
    held.label = record.label;
    ++held.num_records;
    if (held.on_device) count(tensor, 1);
  }
  for (const size_t tensor : record.rebuilt) {
    const Held held{record.rebuilt_as, 1, false, &record};
    CHECK(held_.try_emplace(tensor, held).second, "a tensor is saved before it can be rebuilt");
    // It is there until it is dropped.
    count(tensor, 1);
    count(tensor, -1);
  }
  records_.push_back(&record);
}

void SavedTape::move_away(size_t tensor) {
  Held& held = held_.at(tensor);
  CHECK(held.on_device, "a tensor leaves twice");
  count(tensor, -1);
  held.on_device = false;
}

void SavedTape::bring_back(size_t tensor) {
  Held& held = held_.at(tensor);
  if (held.on_device) return;
  if (held.rebuilt_from != nullptr)
    for (const size_t input : held.rebuilt_from->tensors) bring_back(input);
  held.on_device = true;
  count(tensor, 1);
}

void SavedTape::let_go(size_t tensor) {
  Held& held = held_.at(tensor);
  if (--held.num_records > 0) return;
  if (held.on_device) count(tensor, -1);
  held_.erase(tensor);
}

void SavedTape::load() {
  CHECK(!records_.empty(), "load() from an empty tape");
  const RecordCost& record = *records_.back();
  for (const size_t tensor : record.tensors) bring_back(tensor);
  records_.pop_back();
  for (const size_t tensor : record.tensors) let_go(tensor);
  for (const size_t tensor : record.rebuilt) let_go(tensor);
  if (record.again.empty()) return;
  SavedTape local(tensors_, ledger_);
  for (const RecordCost& inner : record.again) local.save(inner);
  while (!local.empty()) local.load();
}

}  // namespace ferry
