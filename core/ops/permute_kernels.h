#pragma once

// The two backends of permute.h. Arguments are already checked.

#include "core/ops/permute.h"

namespace ferry::cpu {

void make_routing_plan(const RoutingPlan& plan, const Tensor& experts);
void permute_rows(const Tensor& rows, const Tensor& x, const RoutingPlan& plan);
void combine_rows(const Tensor& y, const Tensor& rows, const Tensor& residual,
                  const RoutingPlan& plan);
void gather_scalars(const Tensor& out, const Tensor& in, const Tensor& index);

}  // namespace ferry::cpu

namespace ferry::cuda {

void make_routing_plan(Stream& stream, const RoutingPlan& plan, const Tensor& experts);
void permute_rows(Stream& stream, const Tensor& rows, const Tensor& x, const RoutingPlan& plan);
void combine_rows(Stream& stream, const Tensor& y, const Tensor& rows, const Tensor& residual,
                  const RoutingPlan& plan);
void gather_scalars(Stream& stream, const Tensor& out, const Tensor& in, const Tensor& index);

}  // namespace ferry::cuda
