#include "moe/dispatcher.h"

namespace ferry {

Dispatched LocalDispatcher::dispatch(Pass& pass, const Tensor& x, const Routing& routing) {
  Stream& stream = pass.stream;
  const RoutingPlan& plan = routing.plan;
  const int64_t num_rows = plan.slot_of_row.dim(0);
  Dispatched result;
  result.rows = Tensor::empty(stream, name_of(Label::ExpertFc1), {num_rows, x.dim(1)}, x.dtype());
  permute_rows(stream, result.rows, x, plan);
  result.probs = Tensor::empty(stream, "router", {num_rows}, routing.probs.dtype());
  gather_scalars(stream, result.probs, routing.probs.reshape({num_rows}), plan.slot_of_row);
  result.offsets = plan.offsets;
  return result;
}

Tensor LocalDispatcher::combine(Pass& pass, const Tensor& rows, const Tensor& residual,
                                const RoutingPlan& plan) {
  const int64_t num_tokens = pass.batch.batch * pass.batch.seq;
  const Tensor y =
      Tensor::empty(pass.stream, "moe output", {num_tokens, rows.dim(1)}, rows.dtype());
  combine_rows(pass.stream, y, rows, residual, plan);
  return y;
}

Tensor LocalDispatcher::combine_backward(Pass& pass, const Tensor& dy, const RoutingPlan& plan) {
  const Tensor drows =
      Tensor::empty(pass.stream, "gradients", {plan.slot_of_row.dim(0), dy.dim(1)}, dy.dtype());
  permute_rows(pass.stream, drows, dy, plan);
  return drows;
}

Dispatcher::Gradients LocalDispatcher::dispatch_backward(Pass& pass, const Tensor& drows,
                                                         const Tensor& dprobs,
                                                         const Tensor& dresidual,
                                                         const RoutingPlan& plan) {
  const int64_t num_tokens = pass.batch.batch * pass.batch.seq;
  const int64_t num_slots = plan.slot_of_row.dim(0);
  Gradients result;
  result.x = combine(pass, drows, dresidual, plan);
  const Tensor by_slot = Tensor::empty(pass.stream, "gradients", {num_slots}, dprobs.dtype());
  gather_scalars(pass.stream, by_slot, dprobs, plan.row_of_slot);
  result.probs = by_slot.reshape({num_tokens, num_slots / num_tokens});
  return result;
}

}  // namespace ferry
