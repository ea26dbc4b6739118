#pragma once

// The two backends of rope.h. Arguments are already checked.

#include "core/ops/rope.h"

namespace ferry::cpu {

void rope_table(const Tensor& cosine, const Tensor& sine, double theta);
void rope(const Tensor& y, const Tensor& x, const Tensor& cosine, const Tensor& sine,
          const AttentionDims& dims, Rotation rotation);

}  // namespace ferry::cpu

namespace ferry::cuda {

void rope_table(Stream& stream, const Tensor& cosine, const Tensor& sine, double theta);
void rope(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& cosine,
          const Tensor& sine, const AttentionDims& dims, Rotation rotation);

}  // namespace ferry::cuda
