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

/// Both halves of a layer of experts around SwiGLU (core/ops/swiglu.h), N = 2F:
/// gate_up [R, 2F] = x [R, K] * weight[e] [2F, K]^T, h [R, F] = silu(gate) * up * prob. On a GPU
/// that can, h is made from the tiles of gate_up before they leave the multiprocessor.
void grouped_gemm_swiglu_forward(Stream& stream, const Tensor& gate_up, const Tensor& h,
                                 const Tensor& x, const Tensor& weight, const Tensor& prob,
                                 const Tensor& offsets);

/// dgate_up [R, 2F] (may be the memory of gate_up) and dprob [R] (if defined), of dh = dy [R, N] *
/// weight[e] [N, F], which is rounded to the rows' dtype and need not reach memory.
void grouped_gemm_swiglu_backward(Stream& stream, const Tensor& dgate_up, const Tensor& dprob,
                                  const Tensor& dy, const Tensor& weight, const Tensor& gate_up,
                                  const Tensor& prob, const Tensor& offsets);

/// dweight[e] [N, K] += dy_e [R_e, N]^T * x_e [R_e, K]; dweight [E, N, K] in accumulate_dtype.
void grouped_gemm_wgrad(Stream& stream, const Tensor& dweight, const Tensor& dy, const Tensor& x,
                        const Tensor& offsets);

}  // namespace ferry
