#include "offload/optimizer_partition.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"

namespace ferry {

std::vector<bool> choose_for_host(std::span<const int64_t> elements, double fraction,
                                  HostPart part) {
  CHECK(0 <= fraction && fraction <= 1, "fraction ", fraction);
  const double threshold =
      fraction * static_cast<double>(std::accumulate(elements.begin(), elements.end(), int64_t{0}));
  std::vector<bool> on_host(elements.size(), false);
  int64_t taken = 0;
  for (size_t i = 0; i < elements.size(); ++i) {
    const size_t next = part == HostPart::First ? i : elements.size() - 1 - i;
    if (static_cast<double>(taken) >= threshold) break;
    on_host[next] = true;
    taken += elements[next];
  }
  return on_host;
}

std::vector<bool> choose_for_host(std::span<const int64_t> elements,
                                  const std::vector<bool>& expert, double fraction, HostPart part) {
  std::vector<bool> on_host(elements.size());
  for (const bool of_experts : {false, true}) {
    std::vector<size_t> members;
    std::vector<int64_t> sizes;
    for (size_t i = 0; i < elements.size(); ++i) {
      if (expert[i] != of_experts) continue;
      members.push_back(i);
      sizes.push_back(elements[i]);
    }
    const std::vector<bool> chosen = choose_for_host(sizes, fraction, part);
    for (size_t i = 0; i < members.size(); ++i) on_host[members[i]] = chosen[i];
  }
  return on_host;
}

std::vector<OptimizerPlace> place_optimizer(const std::vector<const Parameter*>& parameters,
                                            double fraction, HostPart part) {
  std::vector<OptimizerPlace> places;
  std::vector<int64_t> elements;
  std::vector<bool> expert;
  for (const Parameter* parameter : parameters) {
    elements.push_back(parameter->shape.numel());
    expert.push_back(parameter->axis == ReduceAxis::Expert);
    places.push_back({parameter->name, expert.back(), parameter->decay, false, elements.back()});
  }
  const std::vector<bool> on_host = choose_for_host(elements, expert, fraction, part);
  for (size_t i = 0; i < places.size(); ++i) places[i].on_host = on_host[i];
  return places;
}

}  // namespace ferry
