#pragma once

// Layer offload on sizes instead of tensors; see offload/layer_offload.h.

#include <cstdint>
#include <map>
#include <vector>

#include "app/saved_mover.h"
#include "offload/offload_plan.h"

namespace ferry {

/// The first layers of a model, of which at least one stays.
struct OffloadedLayers {
  int64_t num_layers = 0;
  int64_t total_layers = 0;
};

/// The layers of one pass. Each copy is waited for where memory is let go, so nothing here depends
/// on time.
class SavedLayers final : public SavedMover {
 public:
  /// What is given by reference must outlive this.
  SavedLayers(const OffloadedLayers& offloaded, SavedTape& tape, SavedLedger& ledger)
      : offloaded_(offloaded), tape_(tape), ledger_(ledger) {}

  void entering(int64_t layer) override;
  void saved(const RecordCost& record) override;
  void loading(const RecordCost& record) override;

 private:
  struct Layer {
    std::vector<size_t> tensors;  // that left
    int64_t leaving = 0;          // bytes that were not let go
  };
  // The head comes after all layers.
  int64_t position(int64_t layer) const { return layer < 0 ? offloaded_.total_layers : layer; }
  void commit(int64_t layer);
  void let_go(Layer& layer);
  void reload(int64_t layer);

  const OffloadedLayers& offloaded_;
  SavedTape& tape_;
  SavedLedger& ledger_;
  std::map<size_t, int64_t> layer_of_;  // that saved the tensor last
  std::map<int64_t, Layer> layers_;
  int64_t forward_layer_ = 0;
  int64_t backward_layer_ = -1;
};

/// The layers of a pass as groups of the module "layer"; the first `num_layers` are to move.
std::vector<OffloadGroup> layer_groups(const PassRecords& costs, int64_t num_layers);

}  // namespace ferry
