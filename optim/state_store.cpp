#include "optim/state_store.h"

#include "core/ops/elementwise.h"

namespace ferry {

DeviceStateStore::DeviceStateStore(Stream& stream, const std::vector<Parameter*>& parameters) {
  for (const Parameter* parameter : parameters) {
    const DType dtype = accumulate_dtype(parameter->dtype);
    AdamwState state;
    if (parameter->dtype == dtype) {
      state.master = parameter->value;
    } else {
      state.master = Tensor::empty(stream, "masters fp32", parameter->shape, dtype);
      cast(stream, state.master, parameter->value);
    }
    for (Tensor* moment : {&state.exp_avg, &state.exp_avg_sq}) {
      *moment = Tensor::empty(stream, "moments fp32", parameter->shape, dtype);
      stream.zero(*moment);
    }
    states_.emplace(parameter, std::move(state));
  }
}

}  // namespace ferry
