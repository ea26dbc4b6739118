#pragma once

// Which parameters' optimizer state lives on the host. As in Megatron-LM, the parameters are walked
// in order and one goes to the host while those before it are fewer elements than fraction * all;
// so fraction 0 takes none and 1 takes all, and the last one taken may overshoot. Dense parameters
// and experts are two lists, each with the same fraction of its own.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/parameter.h"

namespace ferry {

struct OptimizerPlace {
  std::string name;     // of the parameter
  bool expert = false;  // reduced over the ranks with the same experts
  bool decay = true;
  bool on_host = false;
  int64_t elements = 0;  // that this rank updates
};

/// At which end of the lists the host's part begins.
enum class HostPart { First, Last };

/// For each list of `elements`, in order: is it on the host?
std::vector<bool> choose_for_host(std::span<const int64_t> elements, double fraction,
                                  HostPart part);

/// The same where each element of `expert` says to which of the two lists its entry belongs.
std::vector<bool> choose_for_host(std::span<const int64_t> elements,
                                  const std::vector<bool>& expert, double fraction, HostPart part);

/// The places of `parameters` in the order of forward, dense and experts apart.
std::vector<OptimizerPlace> place_optimizer(const std::vector<const Parameter*>& parameters,
                                            double fraction, HostPart part);

}  // namespace ferry
