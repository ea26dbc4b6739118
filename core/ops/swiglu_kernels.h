#pragma once

// The two backends of swiglu.h. Arguments are already checked.

#include "core/ops/swiglu.h"

namespace ferry {

/// CHECKs that h (or its gradient) is [R, F] beside gate_up [R, 2F], and prob [R] or undefined.
void check_swiglu(const Tensor& h, const Tensor& gate_up, const Tensor& prob);

}  // namespace ferry

namespace ferry::cpu {

void swiglu_forward(const Tensor& h, const Tensor& gate_up, const Tensor& prob);
void swiglu_backward(const Tensor& dgate_up, const Tensor& dprob, const Tensor& dh,
                     const Tensor& gate_up, const Tensor& prob);

}  // namespace ferry::cpu

namespace ferry::cuda {

void swiglu_forward(Stream& stream, const Tensor& h, const Tensor& gate_up, const Tensor& prob);
void swiglu_backward(Stream& stream, const Tensor& dgate_up, const Tensor& dprob, const Tensor& dh,
                     const Tensor& gate_up, const Tensor& prob);

}  // namespace ferry::cuda
