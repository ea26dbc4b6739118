#pragma once

// Where optimizer state lives. The update rule reads and writes state through a StateStore and has
// no word about its place; a store that keeps state on the host is another implementation.

#include <map>
#include <vector>

#include "core/parameter.h"

namespace ferry {

/// The state of one parameter, in accumulate_dtype of its value, with its shape.
struct AdamwState {
  Tensor master;  // the same memory as the value if that has full precision itself
  Tensor exp_avg;
  Tensor exp_avg_sq;
};

class StateStore {
 public:
  virtual ~StateStore() = default;
  /// State for update; valid until the next call for another parameter.
  virtual AdamwState& state(const Parameter& parameter) = 0;
};

/// Everything on the device of the parameters.
class DeviceStateStore final : public StateStore {
 public:
  /// Masters are the values as they are now; moments are zero.
  DeviceStateStore(Stream& stream, const std::vector<Parameter*>& parameters);
  AdamwState& state(const Parameter& parameter) override { return states_.at(&parameter); }

 private:
  std::map<const Parameter*, AdamwState> states_;
};

}  // namespace ferry
