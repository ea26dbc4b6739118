#pragma once

// The two backends of gemm.h. Arguments are checked by gemm.cpp; cpu:: runs on the stream's thread.

#include "core/ops/gemm.h"

namespace ferry::cpu {
void gemm(const Tensor& c, const Tensor& a, Transpose transpose_a, const Tensor& b,
          Transpose transpose_b, double beta);
void gemm_batched(const Tensor& c, const Tensor& a, Transpose transpose_a, const Tensor& b,
                  Transpose transpose_b, double beta);
}  // namespace ferry::cpu

namespace ferry::cuda {
void gemm(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a, const Tensor& b,
          Transpose transpose_b, double beta);
void gemm_batched(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a,
                  const Tensor& b, Transpose transpose_b, double beta);
}  // namespace ferry::cuda
