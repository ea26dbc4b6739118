#include "moe/all_gather_dispatcher.h"

#include "core/ops/elementwise.h"
#include "moe/expert_rows.h"

namespace ferry {

struct AllGatherDispatcher::Plan {
  ExpertRows here;  // of the tokens of all ranks

  Tensor host_offset;  // [1]: where the rows of local experts end, until the host knows
  Event offset_known;

  void wait_for_num_rows() {
    if (here.num_rows >= 0) return;
    offset_known.wait_host();
    here.num_rows = *host_offset.data<int32_t>();
    host_offset = Tensor();
  }
};

void AllGatherDispatcher::prepare(Pass& pass, const Routing& routing) {
  keep_plan(pass, [&] { return start_plan(pass, routing); });
}

std::shared_ptr<AllGatherDispatcher::Plan> AllGatherDispatcher::start_plan(
    Pass& pass, const Routing& routing) const {
  Stream& stream = pass.stream;
  auto plan = std::make_shared<Plan>();
  plan->here = ExpertRows::of_rank(pass, gather(stream, routing.experts), num_experts_, experts_,
                                   row_limit(pass, routing));
  if (plan->here.num_rows >= 0) return plan;
  const int64_t num_local = experts_.num_local(num_experts_);
  plan->host_offset = Tensor::host(stream.device(), "routing plan", {1}, DType::I32);
  stream.copy(plan->host_offset, plan->here.offsets.rows(num_local, num_local + 1));
  plan->offset_known = stream.record();
  return plan;
}

Tensor AllGatherDispatcher::gather(Stream& stream, const Tensor& own) const {
  const Tensor all = Tensor::empty(stream, "expert exchange",
                                   {experts_.size() * own.dim(0), own.dim(1)}, own.dtype());
  experts_.exchange->all_gather(stream, all, own);
  return all;
}

Dispatcher::Exchanged AllGatherDispatcher::sum_scatter(Pass& pass, Stream& exchange,
                                                       const Tensor& all) const {
  const Tensor own = Tensor::empty(pass.stream, "moe output",
                                   {all.dim(0) / experts_.size(), all.dim(1)}, all.dtype());
  follow(exchange, pass.stream);
  experts_.exchange->reduce_scatter(exchange, own, all);
  return {own, all, arrival(exchange, pass)};
}

Tensor AllGatherDispatcher::rows_of_tokens(Pass& pass, const Tensor& x,
                                           std::string_view name) const {
  const auto plan = plan_of<std::shared_ptr<Plan>>(pass);
  const Tensor all = gather(pass.stream, x);
  plan->wait_for_num_rows();
  return plan->here.rows_of_tokens(pass.stream, all, name);
}

Tensor AllGatherDispatcher::numbers_of_rows(Pass& pass, const Tensor& by_choice) const {
  const auto plan = plan_of<std::shared_ptr<Plan>>(pass);
  return plan->here.numbers_of_rows(pass.stream, gather(pass.stream, by_choice));
}

Tensor AllGatherDispatcher::offsets(Pass& pass) const {
  return plan_of<std::shared_ptr<Plan>>(pass)->here.offsets;
}

Dispatcher::Exchanged AllGatherDispatcher::return_rows(Pass& pass, Stream& exchange,
                                                       const Tensor& rows) const {
  const auto plan = plan_of<std::shared_ptr<Plan>>(pass);
  return sum_scatter(pass, exchange,
                     plan->here.tokens_of_rows(pass.stream, rows, {}, "expert exchange"));
}

Tensor AllGatherDispatcher::tokens_of_returned(Pass& pass, const Tensor& returned,
                                               const Tensor& residual) const {
  if (residual.defined()) add(pass.stream, returned, returned, residual);
  return returned;
}

Dispatcher::Exchanged AllGatherDispatcher::return_numbers(Pass& pass, Stream& exchange,
                                                          const Tensor& by_row) const {
  const auto plan = plan_of<std::shared_ptr<Plan>>(pass);
  return sum_scatter(pass, exchange, plan->here.numbers_of_choices(pass.stream, by_row));
}

Tensor AllGatherDispatcher::choices_of_returned(Pass&, const Tensor& returned) const {
  return returned;
}

}  // namespace ferry
