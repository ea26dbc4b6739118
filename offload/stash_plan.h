#pragma once

// How many pages a paged stash needs: a pure function of what the first training step measured.
//
// A *group* is one execution of the experts of one layer; its tensors have padded rows, of which
// some are in use. The last group of a pass whose own backward comes next stays where it is.

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "offload/activation_mover.h"

namespace ferry {

/// Whether the stash takes what a record of this label holds.
inline bool is_of_experts(Label label) {
  return label == Label::ExpertFc1 || label == Label::MoeAct || label == Label::ExpertFc2 ||
         label == Label::FusedGroupMlp;
}

/// Tensors of one dtype and width share a pool.
struct PoolKey {
  DType dtype = DType::F32;
  int64_t width = 0;
  auto operator<=>(const PoolKey&) const = default;
};

struct StashedTensor {
  PoolKey pool;
  int group = 0;            // of its pass, in the order of forward
  int64_t padded_rows = 0;  // what the tensor has
  int64_t rows = 0;         // what is in use
};
using StashedPasses = std::map<PassId, std::vector<StashedTensor>>;

/// The most rows at once. Those of a tensor are rounded up to whole pages, which belong to it
/// alone.
struct StashPeak {
  int64_t rows = 0;          // in use
  int64_t average_rows = 0;  // if every tensor had floor(padded rows / capacity factor) in use
};
std::map<PoolKey, StashPeak> stash_peaks(std::span<const PassAction> actions,
                                         const StashedPasses& passes, int64_t page_rows,
                                         double capacity_factor);

/// The pages of floor(peak * |factor|) rows: of the average peak for a positive factor, of the
/// measured one for a negative factor, none for 0.
int64_t num_stash_pages(const StashPeak& peak, double factor, int64_t page_rows);

/// What runs after an action, or null at the end of the step. The action must be in the schedule.
const PassAction* next_action(std::span<const PassAction> actions, const PassAction& action);

/// True if a pass goes back as soon as it went forward.
bool returns_at_once(std::span<const PassAction> actions, PassId pass);

}  // namespace ferry
