#include "app/saved_tape.h"

#include <algorithm>

#include "core/check.h"

namespace ferry {

void SavedLedger::add(Label label, int64_t bytes) {
  const auto i = static_cast<size_t>(label);
  current_[i] += bytes;
  peaks_[i] = std::max(peaks_[i], current_[i]);
  total_ += bytes;
  peak_with_beside_ = std::max(peak_with_beside_, total_ + beside_);
  if (total_ <= peak_) return;
  peak_ = total_;
  at_peak_ = current_;
}

void SavedLedger::add_beside(int64_t bytes) {
  beside_ += bytes;
  peak_with_beside_ = std::max(peak_with_beside_, total_ + beside_);
}

void SavedLedger::add_host(int64_t bytes) {
  host_ += bytes;
  host_peak_ = std::max(host_peak_, host_);
}

std::map<std::string, int64_t> SavedLedger::named(const Bytes& bytes) {
  std::map<std::string, int64_t> names;
  for (size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] != 0) names[std::string(name_of(static_cast<Label>(i)))] = bytes[i];
  return names;
}

void SavedTape::count(const Held& held, size_t tensor, int64_t sign) {
  if (held.place == Place::Device) ledger_.add(held.label, sign * bytes(tensor));
}

void SavedTape::count_return(const Held& held, int64_t bytes) {
  if (held.back_as)
    ledger_.add(*held.back_as, bytes);
  else
    ledger_.add_beside(bytes);
}

bool SavedTape::on_device(size_t tensor) const {
  const auto found = held_.find(tensor);
  return found != held_.end() && found->second.place == Place::Device;
}

void SavedTape::save(const RecordCost& record) {
  for (const size_t tensor : record.tensors) {
    const auto [entry, is_new] = held_.try_emplace(tensor, Held{record.label});
    Held& held = entry->second;
    if (!is_new) count(held, tensor, -1);
    held.label = record.label;
    ++held.num_records;
    count(held, tensor, 1);
  }
  records_.push_back(&record);
}

void SavedTape::drop_rebuilt() {
  const RecordCost& record = newest();
  for (const size_t tensor : record.rebuilt) {
    const Held held{record.rebuilt_as, 1, Place::Nowhere, {}, &record};
    CHECK(held_.try_emplace(tensor, held).second, "a tensor is saved before it can be rebuilt");
    // It is there until it is dropped.
    ledger_.add(record.rebuilt_as, bytes(tensor));
    ledger_.add(record.rebuilt_as, -bytes(tensor));
  }
}

void SavedTape::move_away(size_t tensor, std::optional<Label> back_as) {
  Held& held = held_.at(tensor);
  CHECK(held.place == Place::Device, "a tensor leaves twice");
  count(held, tensor, -1);
  held.place = Place::Away;
  held.back_as = back_as;
  if (back_as) ledger_.add_host(bytes(tensor));
}

void SavedTape::start_back(size_t tensor) {
  const auto found = held_.find(tensor);
  if (found == held_.end() || found->second.place != Place::Away) return;
  found->second.place = Place::Returning;
  count_return(found->second, bytes(tensor));
  if (found->second.back_as) ledger_.add_host(-bytes(tensor));
}

void SavedTape::bring_back(size_t tensor) {
  start_back(tensor);
  Held& held = held_.at(tensor);
  if (held.place == Place::Device) return;
  if (held.place == Place::Returning) count_return(held, -bytes(tensor));
  if (held.place == Place::Nowhere)
    for (const size_t input : held.rebuilt_from->tensors) bring_back(input);
  held.place = Place::Device;
  count(held, tensor, 1);
}

void SavedTape::let_go(size_t tensor) {
  Held& held = held_.at(tensor);
  if (--held.num_records > 0) return;
  count(held, tensor, -1);
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
