#pragma once

// Rotary position embedding (J. Su et al., 2021), half-split layout: element i of a head is paired
// with i + head_dim/2 and rotated by position * theta^(-2i/head_dim). Positions restart with each
// sequence.

#include "core/ops/attention.h"

namespace ferry {

/// Fills cosine and sine, both [seq, head_dim/2], F32 (F64 for float64 models); computed in double.
void rope_table(Stream& stream, const Tensor& cosine, const Tensor& sine, double theta);

enum class Rotation { Forward, Backward };

/// Rotates the query and key heads of qkv and copies the values; y may be the same memory as x.
/// Backward rotates by the opposite angle, which is the gradient.
void rope(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& cosine,
          const Tensor& sine, const AttentionDims& dims, Rotation rotation);

}  // namespace ferry
