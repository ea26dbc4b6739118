#pragma once

// Moving tokens to their experts and back. Without floating-point atomics and without the host:
// rows are ordered by expert and, within an expert, by token (stable), so results never depend on
// timing or layout.
//
// Slot s = t*k + j is choice j of token t; R = T*k slots. The plan is made once per micro-batch and
// passed to both directions. The backward of permute is combine; the backward of combine is
// permute.

#include "core/tensor.h"

namespace ferry {

struct RoutingPlan {
  Tensor counts;       // [E] I32: rows of each expert
  Tensor offsets;      // [E+1] I32: exclusive sums of counts
  Tensor row_of_slot;  // [R] I32
  Tensor slot_of_row;  // [R] I32, the inverse
};

/// Fills the plan from experts [T, k] I32, all in [0, E).
void make_routing_plan(Stream& stream, const RoutingPlan& plan, const Tensor& experts);

/// rows [R, D]: row r = x[slot_of_row[r] / k].
void permute_rows(Stream& stream, const Tensor& rows, const Tensor& x, const RoutingPlan& plan);

/// y [T, D]: y[t] = residual[t] + sum over j of rows[row_of_slot[t*k + j]], summed in accumulate
/// dtype in order of j, rounded once. residual may be undefined.
void combine_rows(Stream& stream, const Tensor& y, const Tensor& rows, const Tensor& residual,
                  const RoutingPlan& plan);

/// out[i] = in[index[i]] for scalars (probabilities and their gradients). F32 or F64, index I32.
void gather_scalars(Stream& stream, const Tensor& out, const Tensor& in, const Tensor& index);

}  // namespace ferry
