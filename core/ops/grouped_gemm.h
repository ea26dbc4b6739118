#pragma once

// Products of consecutive groups of rows with one weight matrix each: the experts of a MoE layer.
// Group e owns rows [offsets[e], offsets[e+1]); the offsets stay on the device, so the host never
// waits for the counts. Groups may be empty. offsets: [E+1] I32, offsets[E] <= R; rows
// beyond that are neither read nor written.

#include "core/tensor.h"

namespace ferry {

/// y [R, N] = x [R, K] * weight[e] [N, K]^T for the rows of each group; weight [E, N, K].
void grouped_gemm_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& weight,
                          const Tensor& offsets);

/// dx [R, K] = dy [R, N] * weight[e] [N, K].
void grouped_gemm_dgrad(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& weight,
                        const Tensor& offsets);

/// dweight[e] [N, K] += dy_e [R_e, N]^T * x_e [R_e, K]; dweight [E, N, K] in accumulate_dtype.
void grouped_gemm_wgrad(Stream& stream, const Tensor& dweight, const Tensor& dy, const Tensor& x,
                        const Tensor& offsets);

}  // namespace ferry
