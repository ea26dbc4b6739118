#pragma once

// Moving tokens to their experts and back. Without floating-point atomics and without the host:
// rows are ordered by expert and, within an expert, by token (stable), so results never depend on
// timing or layout.
//
// Slot s = t*k + j is choice j of token t; R = T*k slots. The plan is made once per micro-batch and
// passed to both directions. The backward of permute is combine; the backward of combine is
// permute.
//
// Ranks that hold some of the experts only: their experts may be followed by one more that stands
// for all others, whose rows come last and are left out: rows [R', D] with R' < R then hold the
// first R' rows of the plan.

#include "core/tensor.h"

namespace ferry {

struct RoutingPlan {
  Tensor counts;       // [E] I32: rows of each expert
  Tensor offsets;      // [E+1] I32: exclusive sums of counts
  Tensor row_of_slot;  // [R] I32
  Tensor slot_of_row;  // [R] I32, the inverse

  /// To be filled.
  static RoutingPlan empty(Stream& stream, int64_t num_experts, int64_t num_slots);
};

/// Fills the plan from experts [T, k] I32, all in [0, E).
void make_routing_plan(Stream& stream, const RoutingPlan& plan, const Tensor& experts);

/// destinations [T, k * copies] I32: where a token goes for each of its choices, to a rank only
/// once. An expert's matrices are shared by `copies` consecutive ranks: with m = experts_per_rank,
/// choice e = experts[t, j] and q < copies, destinations[t, j * copies + q] is r = e / m * copies +
/// q, or num_ranks + r if an earlier choice takes the token there already. So in a plan of 2 *
/// num_ranks groups the rows to send come first, ordered by rank and then by token, and its counts
/// say of each rank how many rows it gets, and then how many choices need none of their own.
void find_destinations(Stream& stream, const Tensor& destinations, const Tensor& experts,
                       int64_t experts_per_rank, int64_t copies, int64_t num_ranks);

/// local_experts = experts - first for those in [first, first + num_local), num_local for all
/// others.
void localise_experts(Stream& stream, const Tensor& local_experts, const Tensor& experts,
                      int64_t first, int64_t num_local);

/// rows [R', D], R' <= R: row r = x[slot_of_row[r] / k], k = R / T. Any dtype.
void permute_rows(Stream& stream, const Tensor& rows, const Tensor& x, const RoutingPlan& plan);

/// The same from slot_of_row [R'] I32 alone, k given: any tokens in any order, some several times.
void gather_rows(Stream& stream, const Tensor& rows, const Tensor& x, const Tensor& slot_of_row,
                 int64_t top_k);

/// y [T, D]: y[t] = residual[t] + sum over j of rows[row_of_slot[t*k + j]], summed in accumulate
/// dtype in order of j, rounded once; rows [R', D], and those from R' on count as zeros. residual
/// may be undefined.
void combine_rows(Stream& stream, const Tensor& y, const Tensor& rows, const Tensor& residual,
                  const RoutingPlan& plan);

/// out[i] = in[index[i]] for scalars (probabilities and their gradients), 0 where that is beyond
/// `in`. F32 or F64, index I32; `index` may be longer than `out`.
void gather_scalars(Stream& stream, const Tensor& out, const Tensor& in, const Tensor& index);

}  // namespace ferry
