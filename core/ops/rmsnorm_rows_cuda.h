#pragma once

// RMS norm of rows that may be cut out of wider rows: rmsnorm uses whole rows, qk_norm of the full
// width uses the query and the key part of each row of qkv.

#include "core/tensor.h"

namespace ferry::cuda {

/// Distances are in elements.
struct NormRows {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;       // from one row to the next, of every matrix
  int64_t rstd_stride = 1;  // from one rstd to the next
};

/// If residual is not null, sum = x + residual is written and normalised. Types are `dtype`.
void rmsnorm_rows_forward(Stream& stream, DType dtype, void* y, float* rstd, void* sum,
                          const void* x, const void* residual, const void* weight,
                          const NormRows& shape, double eps);

/// dresidual may be null; dweight [columns] +=.
void rmsnorm_rows_backward(Stream& stream, DType dtype, void* dx, float* dweight, const void* dy,
                           const void* x, const float* rstd, const void* weight,
                           const void* dresidual, const NormRows& shape);

}  // namespace ferry::cuda
