#pragma once

// core/tape.h with sizes instead of tensors: what a tape holds on the device at every moment of a
// step, by the module that each tensor belongs to, when policies drop some tensors and move others.
// A tensor that moves is gone at once and back when it is used; what copies hold meanwhile is not
// counted here (see offload/offload_simulation.h).

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "app/model/saved_records.h"

namespace ferry {

/// Bytes on the device by label, and the moment with the most of them.
class SavedLedger {
 public:
  void add(Label label, int64_t bytes);
  int64_t current() const { return total_; }
  int64_t peak() const { return peak_; }
  /// By name, of all labels together, at the peak. Labels without bytes are left out.
  std::map<std::string, int64_t> at_peak() const { return named(at_peak_); }
  std::map<std::string, int64_t> now() const { return named(current_); }
  /// The most of each label alone.
  std::map<std::string, int64_t> peaks() const { return named(peaks_); }

 private:
  static constexpr size_t kNumLabels = static_cast<size_t>(Label::Layer) + 1;
  using Bytes = std::array<int64_t, kNumLabels>;
  static std::map<std::string, int64_t> named(const Bytes& bytes);
  Bytes current_{}, at_peak_{}, peaks_{};
  int64_t total_ = 0, peak_ = 0;
};

class SavedTape {
 public:
  /// Both must outlive this.
  SavedTape(const std::vector<TensorCost>& tensors, SavedLedger& ledger)
      : tensors_(tensors), ledger_(ledger) {}

  void save(const RecordCost& record);
  /// Loads the newest record. Of a checkpoint, runs its second forward and backward.
  void load();
  bool empty() const { return records_.empty(); }

  bool on_device(size_t tensor) const;
  Label label(size_t tensor) const { return held_.at(tensor).label; }
  /// A tensor on the device leaves it, until a record that has it is loaded.
  void move_away(size_t tensor);

 private:
  struct Held {
    Label label;
    int num_records = 0;
    bool on_device = true;
    const RecordCost* rebuilt_from = nullptr;
  };
  void count(size_t tensor, int64_t sign);
  void bring_back(size_t tensor);
  void let_go(size_t tensor);

  const std::vector<TensorCost>& tensors_;
  SavedLedger& ledger_;
  std::map<size_t, Held> held_;
  std::vector<const RecordCost*> records_;
};

}  // namespace ferry
