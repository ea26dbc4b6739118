#pragma once

// The two backends of permute.h. Arguments are already checked.

#include "core/ops/permute.h"

namespace ferry::cpu {

void make_routing_plan(const RoutingPlan& plan, const Tensor& experts);
void find_destinations(const Tensor& destinations, const Tensor& experts, int64_t experts_per_rank,
                       int64_t copies, int64_t num_ranks);
void localise_experts(const Tensor& local_experts, const Tensor& experts, int64_t first,
                      int64_t num_local);
void permute_rows(const Tensor& rows, const Tensor& x, const RoutingPlan& plan);
void gather_rows(const Tensor& rows, const Tensor& x, const Tensor& slot_of_row, int64_t top_k);
void combine_rows(const Tensor& y, const Tensor& rows, const Tensor& residual,
                  const RoutingPlan& plan);
void gather_scalars(const Tensor& out, const Tensor& in, const Tensor& index);

}  // namespace ferry::cpu

namespace ferry::cuda {

void make_routing_plan(Stream& stream, const RoutingPlan& plan, const Tensor& experts);
void find_destinations(Stream& stream, const Tensor& destinations, const Tensor& experts,
                       int64_t experts_per_rank, int64_t copies, int64_t num_ranks);
void localise_experts(Stream& stream, const Tensor& local_experts, const Tensor& experts,
                      int64_t first, int64_t num_local);
void permute_rows(Stream& stream, const Tensor& rows, const Tensor& x, const RoutingPlan& plan);
void gather_rows(Stream& stream, const Tensor& rows, const Tensor& x, const Tensor& slot_of_row,
                 int64_t top_k);
void combine_rows(Stream& stream, const Tensor& y, const Tensor& rows, const Tensor& residual,
                  const RoutingPlan& plan);
void gather_scalars(Stream& stream, const Tensor& out, const Tensor& in, const Tensor& index);

}  // namespace ferry::cuda
