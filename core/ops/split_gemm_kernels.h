#pragma once

// What split_gemm.h needs besides products. Arguments are already checked.

#include "core/tensor.h"

namespace ferry {

/// x = part 0 + part 1 + part 2, each the BF16 nearest to what the ones before it leave of x.
inline constexpr int kSplitParts = 3;
/// Which part of a number is in each of the three places that its parts have room for.
struct SplitOrder {
  int part[kSplitParts];
};

}  // namespace ferry

namespace ferry::cpu {

/// parts [R, 3C] BF16: of each row of wide [R, C] F32, the parts of all its numbers by place.
void split_rows(const Tensor& parts, const Tensor& wide, SplitOrder order);
/// y [R, C] = sums of the three places of parts [R, 3C], the last one first. F32.
void sum_places(const Tensor& y, const Tensor& parts);

}  // namespace ferry::cpu

namespace ferry::cuda {

void split_rows(Stream& stream, const Tensor& parts, const Tensor& wide, SplitOrder order);
void sum_places(Stream& stream, const Tensor& y, const Tensor& parts);

}  // namespace ferry::cuda
