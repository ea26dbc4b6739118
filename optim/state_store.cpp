#include "optim/state_store.h"

#include "core/ops/elementwise.h"

namespace ferry {

UpdateScalars scalars_of(const Parameter& parameter, UpdateScalars scalars) {
  if (!parameter.decay) scalars.weight_decay = 0;
  return scalars;
}

DType moment_type(DType full, const MomentTypes& types, size_t i) {
  return i < types.size() ? types[i].value_or(full) : full;
}

ParameterState make_device_state(Stream& stream, const Parameter& parameter, const UpdateRule& rule,
                                 const MomentTypes& types) {
  const DType full = accumulate_dtype(parameter.dtype);
  ParameterState state;
  if (parameter.dtype == full) {
    state.master = parameter.value;
  } else {
    state.master = Tensor::empty(stream, "masters fp32", parameter.shape, full);
    cast(stream, state.master, parameter.value);
  }
  for (size_t i = 0; i < rule.moment_names().size(); ++i) {
    const DType dtype = moment_type(full, types, i);
    const char* name = dtype == full ? "moments fp32" : "moments bf16";
    state.moments.push_back(Tensor::empty(stream, name, parameter.shape, dtype));
    stream.zero(state.moments.back());
  }
  return state;
}

DeviceStateStore::DeviceStateStore(Stream& stream, const std::vector<Parameter*>& parameters,
                                   const UpdateRule& rule, const MomentTypes& types)
    : parameters_(parameters) {
  for (const Parameter* parameter : parameters)
    states_.emplace(parameter, make_device_state(stream, *parameter, rule, types));
}

void DeviceStateStore::publish(Stream& stream, const Parameter& parameter) {
  const Tensor& master = states_.at(&parameter).master;
  if (!master.same_memory(parameter.value)) cast(stream, parameter.value, master);
}

void DeviceStateStore::update(Stream& stream, const UpdateRule& rule,
                              const UpdateScalars& scalars) {
  for (const Parameter* parameter : parameters_)
    rule.update(stream, parameter->value, states_.at(parameter), parameter->grad,
                scalars_of(*parameter, scalars));
}

}  // namespace ferry
