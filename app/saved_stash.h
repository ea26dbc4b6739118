#pragma once

// The paged stash on sizes instead of tensors; see offload/paged_stash.h. Pages belong to pools
// that are counted apart; counted here are the copies of tensors that are outside of pages.

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "app/saved_mover.h"
#include "offload/stash_plan.h"

namespace ferry {

/// The groups of one pass.
class SavedStash final : public SavedMover {
 public:
  /// `last_stays`: the pass comes back at once, and its last group stays on the device.
  /// `capacity_factor`: rows over those in use. `packing`: bytes that all passes of the rank pack.
  /// `unpack_other()` is told when nothing of the pass runs any more, to unpack the newest group of
  /// the pass that goes back next. What is given by reference must outlive this.
  SavedStash(const PassRecords& costs, bool last_stays, double capacity_factor, SavedTape& tape,
             SavedLedger& ledger, int64_t& packing, std::function<void()> unpack_other);

  void saved(const RecordCost& record) override;
  void forward_done() override { unpack_other_(); }
  void loading(const RecordCost& record) override;
  void unpack_newest();

  /// All that experts saved, for stash_peaks().
  const std::vector<StashedTensor>& stashed() const { return stashed_; }

 private:
  struct Group {
    int64_t layer;
    int64_t num_records = 0;
    std::vector<size_t> tensors = {};  // in pages
  };
  void join();

  const PassRecords& costs_;
  std::optional<int64_t> layer_that_stays_;
  double capacity_factor_;
  SavedTape& tape_;
  SavedLedger& ledger_;
  int64_t& packing_;
  std::function<void()> unpack_other_;
  std::vector<Group> groups_;
  int num_groups_ = 0;
  std::vector<StashedTensor> stashed_;
};

}  // namespace ferry
