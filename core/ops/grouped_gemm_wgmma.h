#pragma once

// The grouped products of grouped_gemm.h on the warpgroup units of Hopper, for BF16 rows and
// weights whose dims are multiples of 64. FERRY_HOPPER_KERNELS=off in the environment leaves them,
// and what is fused with them, to the reference kernels.

#include "core/tensor.h"

namespace ferry::cuda {

/// What their tables take in shared memory beside the ring of operands allows.
constexpr int64_t kMostWgmmaGroups = 160;

/// True if they take these; weight may be the gradient.
bool wgmma_takes(const Tensor& rows, const Tensor& weight, int64_t groups);

void wgmma_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& weight,
                   const Tensor& offsets);
void wgmma_dgrad(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& weight,
                 const Tensor& offsets);
void wgmma_wgrad(Stream& stream, const Tensor& dweight, const Tensor& dy, const Tensor& x,
                 const Tensor& offsets);

}  // namespace ferry::cuda
