#pragma once

// What the ops that update parameters ask of their tensors: adamw.h, sgd.h.

#include <initializer_list>
#include <type_traits>

#include "core/tensor.h"

namespace ferry {

/// CHECKs that `exact` (master, gradient) have the value's number of elements and
/// accumulate_dtype, and that `moments` have, too, or are BF16 where that is F32.
inline void check_update_state(const Tensor& value, std::initializer_list<const Tensor*> exact,
                               std::initializer_list<const Tensor*> moments) {
  CHECK(value.defined(), "value is undefined");
  const DType dtype = accumulate_dtype(value.dtype());
  const auto check = [&](const Tensor& state, bool may_be_bf16) {
    CHECK(state.defined() && state.numel() == value.numel(), "state of shape ", state.shape(),
          " for a parameter of shape ", value.shape());
    CHECK(state.dtype() == dtype ||
              (may_be_bf16 && dtype == DType::F32 && state.dtype() == DType::BF16),
          "state is ", name_of(state.dtype()), " for ", name_of(value.dtype()));
  };
  for (const Tensor* state : exact) check(*state, false);
  for (const Tensor* moment : moments) check(*moment, true);
}

inline void check_on_host(std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors)
    CHECK(tensor->on_host(), "a tensor of shape ", tensor->shape(), " is not in host memory");
}

/// Calls body.operator()<M>() with the C++ type of a moment beside a master of type S.
template <class S, class Body>
void dispatch_moment(DType dtype, Body&& body) {
  if constexpr (std::is_same_v<S, float>) {
    if (dtype == DType::BF16) return body.template operator()<BFloat16>();
  }
  body.template operator()<S>();
}

}  // namespace ferry
