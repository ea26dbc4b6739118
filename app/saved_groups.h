#pragma once

// Which tensors of a pass leave the device, and when: the groups of fine-grained offload as
// offload/activation_offload.h makes them, the first layers of layer offload, and the rows of
// experts that the paged stash takes. On sizes instead of tensors.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "app/saved_tape.h"
#include "offload/offload_plan.h"

namespace ferry {

struct MovedTensors {
  /// Fine-grained offload: labels and their module; tensors of at least min_tensor_elements.
  std::map<Label, std::string> modules;
  int64_t min_tensor_elements = 0;
  /// Layer offload: everything that layers before this one save.
  int64_t first_layers = 0;
  /// The paged stash takes what experts save.
  bool stash = false;
};

/// Forward of one pass: saves the records of `costs` on `tape` and moves away what `moved` says.
class SavedForward {
 public:
  /// `moves(i)` tells whether group i of the pass leaves.
  SavedForward(const PassRecords& costs, const MovedTensors& moved, SavedTape& tape,
               std::function<bool(size_t)> moves)
      : costs_(costs), moved_(moved), tape_(tape), moves_(std::move(moves)) {}

  /// `backward_is_next`: the pass comes back at once, so the stash leaves its last layer in place.
  void run(bool backward_is_next);

  /// All groups of the pass in order, with their bytes.
  const std::vector<OffloadGroup>& groups() const { return groups_; }
  /// Bytes that went to the stash.
  int64_t stashed() const { return stashed_; }

 private:
  struct Pending {
    Label label;  // of its first record
    size_t group;
    std::vector<size_t> tensors;
  };
  void saved(const RecordCost& record);
  void commit(const Pending& pending);
  bool owns(const std::string& module, size_t tensor) const;
  void move_layer(int64_t layer);
  void stash_layer(int64_t layer);

  const PassRecords& costs_;
  const MovedTensors& moved_;
  SavedTape& tape_;
  std::function<bool(size_t)> moves_;
  std::vector<OffloadGroup> groups_;
  std::vector<Pending> pending_;
  int64_t stashed_ = 0;
};

/// The groups of a pass; all of them are to move.
std::vector<OffloadGroup> offload_groups(const PassRecords& costs, const MovedTensors& moved);
/// The layers of a pass as groups of the module "layer"; the first `first_layers` are to move.
std::vector<OffloadGroup> layer_groups(const PassRecords& costs, int64_t first_layers);

}  // namespace ferry
