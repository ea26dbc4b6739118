#pragma once

// SwiGLU (N. Shazeer, 2020) with an optional factor per row: h = silu(gate) * up * prob. The factor
// is the router's probability, applied on the expert's activation before its second product.
// R rows, F = ffn width. gate_up: [R, 2F], gate first. h: [R, F]. prob: [R] F32 (F64 for F64) or
// undefined (1). Arithmetic in accumulate_dtype, one rounding at the end.

#include "core/tensor.h"

namespace ferry {

void swiglu_forward(Stream& stream, const Tensor& h, const Tensor& gate_up, const Tensor& prob);

/// dgate_up [R, 2F] may be the same memory as gate_up; dprob [R] is written if defined, summed over
/// the row in a fixed order.
void swiglu_backward(Stream& stream, const Tensor& dgate_up, const Tensor& dprob, const Tensor& dh,
                     const Tensor& gate_up, const Tensor& prob);

}  // namespace ferry
