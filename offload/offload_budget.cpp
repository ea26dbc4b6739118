#include "offload/offload_budget.h"

#include <algorithm>
#include <map>
#include <utility>

namespace ferry {
namespace {

using GroupPlace = std::pair<int, size_t>;  // chunk, index in its passes

// The places that have bytes in any micro-batch, the first layers first.
std::vector<GroupPlace> candidates(const std::vector<PassGroups>& passes) {
  std::map<GroupPlace, bool> has_bytes;
  for (const PassGroups& pass : passes)
    for (size_t i = 0; i < pass.groups.size(); ++i)
      if (pass.groups[i].bytes > 0) has_bytes[{pass.pass.chunk, i}] = true;
  std::vector<GroupPlace> places;
  for (const auto& [place, unused] : has_bytes) places.push_back(place);
  return places;
}

void offload_first(std::vector<PassGroups>& passes, const std::vector<GroupPlace>& places,
                   size_t count) {
  for (PassGroups& pass : passes)
    for (size_t i = 0; i < pass.groups.size(); ++i) {
      const GroupPlace place{pass.pass.chunk, i};
      const auto at = std::lower_bound(places.begin(), places.end(), place);
      pass.groups[i].offload =
          at != places.end() && *at == place && static_cast<size_t>(at - places.begin()) < count;
    }
}

}  // namespace

BudgetChoice choose_groups(std::span<const PassAction> actions, std::vector<PassGroups> passes,
                           const OffloadConditions& conditions, double budget) {
  const std::vector<GroupPlace> places = candidates(passes);
  const auto forecast_of = [&](size_t count) {
    offload_first(passes, places, count);
    return simulate_offload(actions, passes, conditions);
  };
  const auto fits = [&](const OffloadForecast& forecast) {
    return forecast.step_s <= (1 + budget) * forecast.step_without_s;
  };
  BudgetChoice choice;
  choice.num_candidates = std::ssize(places);
  choice.forecast = forecast_of(0);
  const bool has_link = conditions.d2h_bytes_per_s > 0 && conditions.h2d_bytes_per_s > 0;
  size_t best = 0;
  for (size_t count = 1; has_link && count <= places.size(); ++count) {
    const OffloadForecast forecast = forecast_of(count);
    if (!fits(forecast) || forecast.saved_bytes() <= choice.forecast.saved_bytes()) continue;
    best = count;
    choice.forecast = forecast;
  }
  offload_first(passes, places, best);
  choice.num_groups = static_cast<int64_t>(best);
  choice.passes = std::move(passes);
  return choice;
}

}  // namespace ferry
