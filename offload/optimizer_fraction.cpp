#include "offload/optimizer_fraction.h"

#include <algorithm>

#include "core/check.h"

namespace ferry {

FractionChoice predict_fraction(double fraction, const std::vector<const Parameter*>& parameters,
                                const std::vector<int64_t>& bytes, HostPart part,
                                const OptimizerRates& rates) {
  CHECK(bytes.size() == parameters.size(), bytes.size(), " sizes of ", parameters.size());
  FractionChoice choice;
  choice.fraction = fraction;
  const std::vector<OptimizerPlace> places = place_optimizer(parameters, fraction, part);
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i].on_host)
      choice.host_elements += places[i].elements;
    else
      choice.device_bytes += bytes[i];
  }
  choice.update_s = static_cast<double>(choice.host_elements) / rates.host_elements_per_s;
  choice.exposed_s = std::max(0.0, choice.update_s - rates.forward_s);
  return choice;
}

FractionChoice choose_fraction(FractionGoal goal, const std::vector<const Parameter*>& parameters,
                               const std::vector<int64_t>& bytes, HostPart part,
                               int64_t device_bytes, const OptimizerRates& rates) {
  constexpr int kSteps = 100;
  FractionChoice choice = predict_fraction(1.0, parameters, bytes, part, rates);
  for (int i = kSteps - 1; i >= 0; --i) {
    const FractionChoice next =
        predict_fraction(static_cast<double>(i) / kSteps, parameters, bytes, part, rates);
    if (next.device_bytes > device_bytes) break;
    if (goal == FractionGoal::Hidden && choice.exposed_s == 0) break;
    choice = next;
  }
  return choice;
}

}  // namespace ferry
