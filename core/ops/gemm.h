#pragma once

// Dense matrix products. CPU: OpenBLAS. CUDA: cuBLASLt, algorithm chosen once per shape.

#include "core/tensor.h"

namespace ferry {

enum class Transpose { No, Yes };

/// c [M, N] = op(a) [M, K] * op(b) [K, N] + beta * c, row-major, where op transposes the stored
/// matrix if asked. a and b have the same dtype (F32, F64 or BF16); c has that dtype, or
/// accumulate_dtype of it, so that weight gradients of BF16 activations add up in FP32.
/// Products are summed in FP32 (F64 for F64). beta is 0 (c is not read) or 1; 1 needs c in
/// accumulate_dtype, since a sum in BF16 would lose a rounding with every addition.
void gemm(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a, const Tensor& b,
          Transpose transpose_b, double beta = 0);

/// The same for each of B pairs of matrices of equal shapes: c [B, M, N], a and b [B, ., .]. On
/// CUDA one product of B strided batches.
void gemm_batched(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a,
                  const Tensor& b, Transpose transpose_b, double beta = 0);

}  // namespace ferry
