#pragma once

// Products of consecutive groups of rows with one weight matrix each: the experts of a MoE layer.
// Group e owns rows [offsets[e], offsets[e+1]); the offsets stay on the device, so the host never
// waits for the counts. Groups may be empty. offsets: [E+1] I32, offsets[E] <= R; rows
// beyond that are neither read nor written.

#include <string_view>
#include <utility>

#include "core/tensor.h"

namespace ferry {

/// The rows [R, K] that a product reads: those of x [R, K] in their order, or, with slot_of_row [R]
/// I32 (core/ops/permute.h), row r = x[slot_of_row[r] / k] of tokens x [T, K], k = R / T.
struct Rows {
  Tensor x;
  Tensor slot_of_row;

  Rows() = default;
  /// In their order. Not explicit: a tensor is its rows.
  Rows(Tensor rows) : x(std::move(rows)) {}
  Rows(Tensor tokens, Tensor index) : x(std::move(tokens)), slot_of_row(std::move(index)) {}

  bool gathered() const { return slot_of_row.defined(); }
  int64_t num_rows() const { return gathered() ? slot_of_row.dim(0) : x.dim(0); }
  /// The rows as one tensor: x itself, or a copy in memory of this name. The numbers are the same,
  /// so products of either are the same bits.
  Tensor contiguous(Stream& stream, std::string_view name) const;
};

/// y [R, N] = x [R, K] * weight[e] [N, K]^T for the rows of each group; weight [E, N, K].
void grouped_gemm_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& weight,
                          const Tensor& offsets);

/// dx [R, K] = dy [R, N] * weight[e] [N, K].
void grouped_gemm_dgrad(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& weight,
                        const Tensor& offsets);

/// Both halves of a layer of experts around SwiGLU (core/ops/swiglu.h), N = 2F:
/// gate_up [R, 2F] = x [R, K] * weight[e] [2F, K]^T, h [R, F] = silu(gate) * up * prob. On a GPU
/// that can, h is made from the tiles of gate_up before they leave the multiprocessor, and gathered
/// rows are read where they are; elsewhere they are copied for the length of the call.
void grouped_gemm_swiglu_forward(Stream& stream, const Tensor& gate_up, const Tensor& h,
                                 const Rows& x, const Tensor& weight, const Tensor& prob,
                                 const Tensor& offsets);

/// dgate_up [R, 2F] (may be the memory of gate_up) and dprob [R] (if defined), of dh = dy [R, N] *
/// weight[e] [N, F], which is rounded to the rows' dtype and need not reach memory.
void grouped_gemm_swiglu_backward(Stream& stream, const Tensor& dgate_up, const Tensor& dprob,
                                  const Tensor& dy, const Tensor& weight, const Tensor& gate_up,
                                  const Tensor& prob, const Tensor& offsets);

/// dweight[e] [N, K] += dy_e [R_e, N]^T * x_e [R_e, K]; dweight [E, N, K] in accumulate_dtype.
/// Gathered rows are copied for the length of the call.
void grouped_gemm_wgrad(Stream& stream, const Tensor& dweight, const Tensor& dy, const Rows& x,
                        const Tensor& offsets);

}  // namespace ferry
