#pragma once

// Products of BF16 activations with FP32 numbers, as precise as products of FP32 but on units that
// multiply BF16: an FP32 number is the sum of three BF16 numbers of 8 bits each, and products of
// BF16 are exact in FP32 (G. Henry, P. Tang, A. Heinecke: Leveraging the bfloat16 Artificial
// Intelligence Datatype For Higher-Precision Computations, 2019). One product over all three parts
// takes the place of a widened copy of the activations and of FP32 products, which run on ordinary
// units.
//
// T rows, D columns, E outputs. x, dx: [T, D] in the activation dtype; weight, dweight [E, D] and
// y, dy [T, E] in accumulate_dtype. Of F32 and F64 activations these are plain products. Sums run
// in accumulate_dtype, in an order that depends on the shapes alone.

#include "core/tensor.h"

namespace ferry {

/// y = x * weight^T.
void split_gemm_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& weight);

/// dx = dy * weight, rounded once. Of BF16, both factors count with 16 bits.
void split_gemm_dgrad(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& weight);

/// dweight += dy^T * x.
void split_gemm_wgrad(Stream& stream, const Tensor& dweight, const Tensor& dy, const Tensor& x);

}  // namespace ferry
