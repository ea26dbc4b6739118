#include "moe/local_dispatcher.h"

namespace ferry {

void LocalDispatcher::prepare(Pass& pass, const Routing& routing) {
  keep_plan(pass, [&] { return Plan{routing.plan, routing.probs.dim(0)}; });
}

std::optional<Rows> LocalDispatcher::rows_in_place(Pass& pass, const Tensor& x) const {
  if (!gather_) return std::nullopt;
  return Rows(x, plan_of<Plan>(pass).rows.slot_of_row);
}

Tensor LocalDispatcher::rows_of_tokens(Pass& pass, const Tensor& x, std::string_view name) const {
  const RoutingPlan plan = plan_of<Plan>(pass).rows;
  const Tensor rows =
      Tensor::empty(pass.stream, name, {plan.slot_of_row.dim(0), x.dim(1)}, x.dtype());
  permute_rows(pass.stream, rows, x, plan);
  return rows;
}

Tensor LocalDispatcher::numbers_of_rows(Pass& pass, const Tensor& by_choice) const {
  const RoutingPlan plan = plan_of<Plan>(pass).rows;
  const int64_t num_rows = plan.slot_of_row.dim(0);
  const Tensor by_row = Tensor::empty(pass.stream, "router", {num_rows}, by_choice.dtype());
  gather_scalars(pass.stream, by_row, by_choice.reshape({num_rows}), plan.slot_of_row);
  return by_row;
}

Tensor LocalDispatcher::offsets(Pass& pass) const { return plan_of<Plan>(pass).rows.offsets; }

Tensor LocalDispatcher::tokens_of_rows(Pass& pass, const Tensor& rows,
                                       const Tensor& residual) const {
  const Plan plan = plan_of<Plan>(pass);
  const Tensor y =
      Tensor::empty(pass.stream, "moe output", {plan.num_tokens, rows.dim(1)}, rows.dtype());
  combine_rows(pass.stream, y, rows, residual, plan.rows);
  return y;
}

Tensor LocalDispatcher::numbers_of_choices(Pass& pass, const Tensor& by_row) const {
  const Plan plan = plan_of<Plan>(pass);
  const int64_t num_slots = plan.rows.row_of_slot.dim(0);
  const Tensor by_slot = Tensor::empty(pass.stream, "gradients", {num_slots}, by_row.dtype());
  gather_scalars(pass.stream, by_slot, by_row, plan.rows.row_of_slot);
  return by_slot.reshape({plan.num_tokens, num_slots / plan.num_tokens});
}

}  // namespace ferry
