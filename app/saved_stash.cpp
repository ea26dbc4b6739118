#include "app/saved_stash.h"

#include <utility>

#include "core/check.h"

namespace ferry {
namespace {

bool takes(const RecordCost& record) { return is_of_experts(record.label) && !record.gathered; }

}  // namespace

SavedStash::SavedStash(const PassRecords& costs, bool last_stays, double capacity_factor,
                       SavedTape& tape, SavedLedger& ledger, int64_t& packing,
                       std::function<void()> unpack_other)
    : costs_(costs),
      capacity_factor_(capacity_factor),
      tape_(tape),
      ledger_(ledger),
      packing_(packing),
      unpack_other_(std::move(unpack_other)) {
  if (!last_stays) return;
  for (const RecordCost& record : costs.records)
    if (takes(record)) layer_that_stays_ = record.layer;
}

void SavedStash::saved(const RecordCost& record) {
  if (!takes(record)) return;
  if (groups_.empty() || groups_.back().layer != record.layer) {
    join();
    groups_.push_back({record.layer});
    ++num_groups_;
  }
  Group& group = groups_.back();
  ++group.num_records;
  for (const size_t tensor : record.tensors) {
    const TensorCost& cost = costs_.tensors[tensor];
    if (!tape_.on_device(tensor) || cost.width == 1) continue;  // vectors stay
    stashed_.push_back({{cost.dtype, cost.width},
                        num_groups_ - 1,
                        cost.rows,
                        static_cast<int64_t>(static_cast<double>(cost.rows) / capacity_factor_)});
    if (record.layer == layer_that_stays_) continue;
    tape_.move_away(tensor, std::nullopt);
    ledger_.add_beside(cost.bytes());
    packing_ += cost.bytes();
    group.tensors.push_back(tensor);
  }
}

void SavedStash::loading(const RecordCost& record) {
  if (!takes(record)) return;
  CHECK(!groups_.empty() && groups_.back().layer == record.layer,
        "a record of experts is loaded that was not saved");
  join();
  unpack_newest();
  if (--groups_.back().num_records > 0) return;
  groups_.pop_back();
  if (groups_.empty())
    unpack_other_();
  else
    unpack_newest();
}

void SavedStash::unpack_newest() {
  if (groups_.empty()) return;
  for (const size_t tensor : groups_.back().tensors) tape_.start_back(tensor);
}

void SavedStash::join() { ledger_.add_beside(-std::exchange(packing_, 0)); }

}  // namespace ferry
