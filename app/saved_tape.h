#pragma once

// core/tape.h with sizes instead of tensors: what a tape holds on the device at every moment of a
// step, by the module that each tensor belongs to, when policies drop some tensors and move others.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app/model/saved_records.h"

namespace ferry {

/// Bytes on the device by label, and the moment with the most of them. They are what the ledger of
/// a rank's saved tensors counts, so the two can be compared.
class SavedLedger {
 public:
  void add(Label label, int64_t bytes);
  /// Memory of the device that the ledger of saved tensors does not count.
  void add_beside(int64_t bytes);
  /// Memory of the host.
  void add_host(int64_t bytes);

  int64_t current() const { return total_; }
  int64_t peak() const { return peak_; }
  /// The most with add_beside() less peak().
  int64_t peak_beside() const { return peak_with_beside_ - peak_; }
  int64_t host_peak() const { return host_peak_; }
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
  int64_t beside_ = 0, peak_with_beside_ = 0;
  int64_t host_ = 0, host_peak_ = 0;
};

class SavedTape {
 public:
  /// Both must outlive this.
  SavedTape(const std::vector<TensorCost>& tensors, SavedLedger& ledger)
      : tensors_(tensors), ledger_(ledger) {}

  void save(const RecordCost& record);
  /// What the newest record can rebuild is dropped.
  void drop_rebuilt();
  /// Loads the newest record. Of a checkpoint, runs its second forward and backward.
  void load();
  bool empty() const { return records_.empty(); }
  const RecordCost& newest() const { return *records_.back(); }

  bool on_device(size_t tensor) const;
  Label label(size_t tensor) const { return held_.at(tensor).label; }
  int64_t bytes(size_t tensor) const { return tensors_[tensor].bytes(); }
  int64_t numel(size_t tensor) const { return tensors_[tensor].numel(); }
  /// A tensor on the device leaves it, until a record that has it is loaded. It goes to the host,
  /// and is counted as `back_as` on its way back; or without that to memory that was set apart, and
  /// is not counted until it is used.
  void move_away(size_t tensor, std::optional<Label> back_as);
  /// It is on its way back, if it was away.
  void start_back(size_t tensor);

 private:
  enum class Place { Device, Away, Returning, Nowhere /* to be rebuilt */ };
  struct Held {
    Label label;
    int num_records = 0;
    Place place = Place::Device;
    std::optional<Label> back_as = {};
    const RecordCost* rebuilt_from = nullptr;
  };
  void count(const Held& held, size_t tensor, int64_t sign);
  void count_return(const Held& held, int64_t bytes);
  void bring_back(size_t tensor);
  void let_go(size_t tensor);

  const std::vector<TensorCost>& tensors_;
  SavedLedger& ledger_;
  std::map<size_t, Held> held_;
  std::vector<const RecordCost*> records_;
};

}  // namespace ferry
