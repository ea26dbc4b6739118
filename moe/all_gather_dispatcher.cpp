#include "moe/all_gather_dispatcher.h"

#include <algorithm>

#include "core/ops/elementwise.h"
#include "core/ops/row_capacity.h"

namespace ferry {

struct AllGatherDispatcher::Plan {
  int64_t num_tokens = 0;  // of this rank
  int64_t top_k = 0;
  RoutingPlan rows;  // [local experts + 1]: the last one stands for all others; ranks * T * k slots
  Tensor offsets;    // [local experts + 1] I32: of local experts

  Tensor host_offset;  // [1]: where the rows of local experts end
  Event offset_known;
  int64_t num_rows = -1;  // of rows tensors; -1 until the host knows

  int64_t wait_for_num_rows() {
    if (num_rows >= 0) return num_rows;
    offset_known.wait_host();
    num_rows = *host_offset.data<int32_t>();
    host_offset = Tensor();
    return num_rows;
  }

  /// The first rows of a rows tensor, which the plan fills: with a capacity above the number of
  /// slots there are more.
  Tensor planned(const Tensor& of_rows) const {
    return of_rows.rows(0, std::min(of_rows.dim(0), rows.slot_of_row.dim(0)));
  }
};

void AllGatherDispatcher::prepare(Pass& pass, const Routing& routing) {
  keep_plan(pass, [&] { return start_plan(pass, routing); });
}

std::shared_ptr<AllGatherDispatcher::Plan> AllGatherDispatcher::start_plan(
    Pass& pass, const Routing& routing) const {
  Stream& stream = pass.stream;
  const int64_t num_local = experts_.num_local(num_experts_);
  auto plan = std::make_shared<Plan>();
  plan->num_tokens = routing.experts.dim(0);
  plan->top_k = routing.experts.dim(1);
  const Tensor experts = gather(stream, routing.experts);
  localise_experts(stream, experts, experts, experts_.first_local(num_experts_), num_local);
  plan->rows = RoutingPlan::empty(stream, num_local + 1, experts.numel());
  make_routing_plan(stream, plan->rows, experts);
  if (const auto limit = row_limit(pass, experts_, routing)) {
    plan->num_rows = *limit;
    plan->offsets = limit_offsets(pass, plan->rows, num_local, *limit);
    return plan;
  }
  plan->offsets = plan->rows.offsets.rows(0, num_local + 1);
  plan->host_offset = Tensor::host(stream.device(), "routing plan", {1}, DType::I32);
  stream.copy(plan->host_offset, plan->rows.offsets.rows(num_local, num_local + 1));
  plan->offset_known = stream.record();
  return plan;
}

Tensor AllGatherDispatcher::gather(Stream& stream, const Tensor& own) const {
  const Tensor all = Tensor::empty(stream, "expert exchange",
                                   {experts_.size() * own.dim(0), own.dim(1)}, own.dtype());
  experts_.exchange->all_gather(stream, all, own);
  return all;
}

Tensor AllGatherDispatcher::sum_scatter(Stream& stream, const Tensor& all) const {
  const Tensor own =
      Tensor::empty(stream, "moe output", {all.dim(0) / experts_.size(), all.dim(1)}, all.dtype());
  experts_.exchange->reduce_scatter(stream, own, all);
  return own;
}

Tensor AllGatherDispatcher::rows_of_tokens(Pass& pass, const Tensor& x,
                                           std::string_view name) const {
  Stream& stream = pass.stream;
  const auto plan = plan_of<std::shared_ptr<Plan>>(pass);
  const Tensor all = gather(stream, x);
  const Tensor rows = Tensor::empty(stream, name, {plan->wait_for_num_rows(), x.dim(1)}, x.dtype());
  permute_rows(stream, plan->planned(rows), all, plan->rows);
  return rows;
}

Tensor AllGatherDispatcher::numbers_of_rows(Pass& pass, const Tensor& by_choice) const {
  Stream& stream = pass.stream;
  const auto plan = plan_of<std::shared_ptr<Plan>>(pass);
  const Tensor all = gather(stream, by_choice);
  const Tensor by_row = Tensor::empty(stream, "router", {plan->num_rows}, by_choice.dtype());
  gather_scalars(stream, plan->planned(by_row), all.reshape({all.numel()}), plan->rows.slot_of_row);
  return by_row;
}

Tensor AllGatherDispatcher::offsets(Pass& pass) const {
  return plan_of<std::shared_ptr<Plan>>(pass)->offsets;
}

Tensor AllGatherDispatcher::tokens_of_rows(Pass& pass, const Tensor& rows,
                                           const Tensor& residual) const {
  Stream& stream = pass.stream;
  const auto plan = plan_of<std::shared_ptr<Plan>>(pass);
  const Tensor partial = Tensor::empty(
      stream, "expert exchange", {experts_.size() * plan->num_tokens, rows.dim(1)}, rows.dtype());
  combine_rows(stream, partial, plan->planned(rows), {}, plan->rows);
  const Tensor y = sum_scatter(stream, partial);
  if (residual.defined()) add(stream, y, y, residual);
  return y;
}

Tensor AllGatherDispatcher::numbers_of_choices(Pass& pass, const Tensor& by_row) const {
  Stream& stream = pass.stream;
  const auto plan = plan_of<std::shared_ptr<Plan>>(pass);
  const Tensor by_slot = Tensor::empty(
      stream, "gradients", {experts_.size() * plan->num_tokens, plan->top_k}, by_row.dtype());
  gather_scalars(stream, by_slot.reshape({by_slot.numel()}), by_row, plan->rows.row_of_slot);
  return sum_scatter(stream, by_slot);
}

}  // namespace ferry
