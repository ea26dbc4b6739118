#include "moe/local_dispatcher.h"

namespace ferry {

void LocalDispatcher::prepare(Pass& pass, const Routing& routing) {
  keep_plan(pass, [&] { return Plan{routing.plan, routing.probs.dim(0)}; });
}

Dispatched LocalDispatcher::dispatch(Pass& pass, const Tensor& x, const Tensor& probs) {
  Stream& stream = pass.stream;
  const RoutingPlan plan = plan_of<Plan>(pass).rows;
  const int64_t num_rows = plan.slot_of_row.dim(0);
  Dispatched result;
  result.rows = Tensor::empty(stream, name_of(Label::ExpertFc1), {num_rows, x.dim(1)}, x.dtype());
  permute_rows(stream, result.rows, x, plan);
  result.probs = Tensor::empty(stream, "router", {num_rows}, probs.dtype());
  gather_scalars(stream, result.probs, probs.reshape({num_rows}), plan.slot_of_row);
  result.offsets = plan.offsets;
  return result;
}

Tensor LocalDispatcher::combine(Pass& pass, const Tensor& rows, const Tensor& residual) {
  const Plan plan = plan_of<Plan>(pass);
  const Tensor y =
      Tensor::empty(pass.stream, "moe output", {plan.num_tokens, rows.dim(1)}, rows.dtype());
  combine_rows(pass.stream, y, rows, residual, plan.rows);
  return y;
}

Tensor LocalDispatcher::combine_backward(Pass& pass, const Tensor& dy) {
  const RoutingPlan plan = plan_of<Plan>(pass).rows;
  const Tensor drows =
      Tensor::empty(pass.stream, "gradients", {plan.slot_of_row.dim(0), dy.dim(1)}, dy.dtype());
  permute_rows(pass.stream, drows, dy, plan);
  return drows;
}

Dispatcher::Gradients LocalDispatcher::dispatch_backward(Pass& pass, const Tensor& drows,
                                                         const Tensor& dprobs,
                                                         const Tensor& dresidual) {
  const Plan plan = plan_of<Plan>(pass);
  const int64_t num_slots = plan.rows.row_of_slot.dim(0);
  Gradients result;
  result.x = combine(pass, drows, dresidual);
  const Tensor by_slot = Tensor::empty(pass.stream, "gradients", {num_slots}, dprobs.dtype());
  gather_scalars(pass.stream, by_slot, dprobs, plan.rows.row_of_slot);
  result.probs = by_slot.reshape({plan.num_tokens, num_slots / plan.num_tokens});
  return result;
}

}  // namespace ferry
