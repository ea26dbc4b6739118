#include "offload/stash_plan.h"

#include <algorithm>
#include <cmath>

namespace ferry {
namespace {

int64_t pages_of(int64_t rows, int64_t page_rows) { return (rows + page_rows - 1) / page_rows; }

}  // namespace

const PassAction* next_action(std::span<const PassAction> actions, const PassAction& action) {
  const auto found = std::find(actions.begin(), actions.end(), action);
  CHECK(found != actions.end(), "micro-batch ", action.pass.micro, " of chunk ", action.pass.chunk,
        " is not in the schedule of this step");
  return found + 1 == actions.end() ? nullptr : &*(found + 1);
}

bool returns_at_once(std::span<const PassAction> actions, PassId pass) {
  const PassAction* next = next_action(actions, {true, pass});
  return next != nullptr && *next == PassAction{false, pass};
}

std::map<PoolKey, StashPeak> stash_peaks(std::span<const PassAction> actions,
                                         const StashedPasses& passes, int64_t page_rows,
                                         double capacity_factor) {
  std::map<PoolKey, StashPeak> now, peaks;
  for (const PassAction& action : actions) {
    const auto found = passes.find(action.pass);
    if (found == passes.end() || found->second.empty()) continue;
    const int last_group = found->second.back().group;
    const bool last_stays = returns_at_once(actions, action.pass);
    for (const StashedTensor& tensor : found->second) {
      if (last_stays && tensor.group == last_group) continue;
      const auto average = static_cast<int64_t>(
          std::floor(static_cast<double>(tensor.padded_rows) / capacity_factor));
      const int64_t sign = action.forward ? 1 : -1;
      StashPeak& in_use = now[tensor.pool];
      in_use.rows += sign * pages_of(tensor.rows, page_rows) * page_rows;
      in_use.average_rows += sign * pages_of(average, page_rows) * page_rows;
      StashPeak& peak = peaks[tensor.pool];
      peak.rows = std::max(peak.rows, in_use.rows);
      peak.average_rows = std::max(peak.average_rows, in_use.average_rows);
    }
  }
  return peaks;
}

int64_t num_stash_pages(const StashPeak& peak, double factor, int64_t page_rows) {
  const int64_t rows = factor > 0 ? peak.average_rows : peak.rows;
  const double scaled = std::floor(static_cast<double>(rows) * std::abs(factor));
  return pages_of(static_cast<int64_t>(scaled), page_rows);
}

}  // namespace ferry
