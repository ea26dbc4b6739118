#include "moe/all_to_all_dispatcher.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace ferry {

// A rank has m = E / ep experts. In the order of sending, rank and local expert of a row are one
// number, rank * m + expert: a "virtual expert".
struct AllToAllDispatcher::Plan {
  int64_t num_tokens = 0;
  int64_t top_k = 0;
  RoutingPlan sent;              // [ep * etp * m] virtual experts; T * k * etp slots
  std::optional<int64_t> limit;  // of rows

  // Once the host has the counts:
  std::vector<int64_t> send_rows, receive_rows;  // of each rank
  RoutingPlan received;                          // [m] experts; as many slots as rows come
  Tensor offsets;                                // [m + 1] I32: of the rows that are kept

  // Until then:
  Tensor received_counts;  // [ranks, m]: rows that each rank sends to each expert here
  Tensor host_counts;      // [2, ranks, m]: sent and received
  Event counts_known;
  bool finished() const { return !host_counts.defined(); }

  int64_t num_received() const { return received.slot_of_row.dim(0); }
  int64_t num_rows() const { return limit.value_or(num_received()); }
  /// The rows of a rows tensor that were received.
  Tensor kept(const Tensor& of_rows) const {
    return of_rows.rows(0, std::min(of_rows.dim(0), num_received()));
  }
};

void AllToAllDispatcher::prepare(Pass& pass, const Routing& routing) {
  keep_plan(pass, [&] { return start_plan(pass, routing); });
}

std::shared_ptr<AllToAllDispatcher::Plan> AllToAllDispatcher::start_plan(
    Pass& pass, const Routing& routing) const {
  Stream& stream = pass.stream;
  const int64_t ranks = experts_.size(), num_local = experts_.num_local(num_experts_);
  auto plan = std::make_shared<Plan>();
  plan->num_tokens = routing.experts.dim(0);
  plan->top_k = routing.experts.dim(1);
  plan->limit = row_limit(pass, experts_, routing);
  plan->sent = routing.plan;
  if (experts_.etp_size > 1) {
    const Tensor choices = Tensor::empty(
        stream, "routing plan", {plan->num_tokens, plan->top_k * experts_.etp_size}, DType::I32);
    expand_choices(stream, choices, routing.experts, num_local, experts_.etp_size);
    plan->sent = RoutingPlan::empty(stream, ranks * num_local, choices.numel());
    make_routing_plan(stream, plan->sent, choices);
  }

  Stream& side = experts_.side != nullptr ? *experts_.side : stream;
  const Tensor sent_counts = plan->sent.counts.reshape({ranks, num_local});
  side.wait(stream.record());
  side.hold(sent_counts);
  plan->received_counts = Tensor::empty(side, "routing plan", {ranks, num_local}, DType::I32);
  const std::vector<int64_t> one_each(static_cast<size_t>(ranks), 1);
  experts_.exchange->all_to_all(side, plan->received_counts, one_each, sent_counts, one_each);
  plan->host_counts =
      Tensor::host(side.device(), "routing plan", {2, ranks, num_local}, DType::I32);
  side.copy(plan->host_counts.rows(0, 1), sent_counts);
  side.copy(plan->host_counts.rows(1, 2), plan->received_counts);
  plan->counts_known = side.record();
  return plan;
}

void AllToAllDispatcher::finish_plan(Pass& pass, Plan& plan) const {
  if (plan.finished()) return;
  Stream& stream = pass.stream;
  plan.counts_known.wait_host();
  const int64_t ranks = experts_.size(), num_local = experts_.num_local(num_experts_);
  const int32_t* counts = plan.host_counts.data<int32_t>();
  for (std::vector<int64_t>* rows : {&plan.send_rows, &plan.receive_rows}) {
    for (int64_t rank = 0; rank < ranks; ++rank, counts += num_local)
      rows->push_back(std::accumulate(counts, counts + num_local, int64_t{0}));
  }

  stream.wait(plan.counts_known);
  stream.hold(plan.received_counts);
  const int64_t num_rows =
      std::accumulate(plan.receive_rows.begin(), plan.receive_rows.end(), int64_t{0});
  plan.received = RoutingPlan::empty(stream, num_local, num_rows);
  make_regroup_plan(stream, plan.received, plan.received_counts);
  plan.offsets = plan.limit ? limit_offsets(pass, plan.received, num_local, *plan.limit)
                            : plan.received.offsets;
  plan.received_counts = plan.host_counts = Tensor();
}

Tensor AllToAllDispatcher::rows_of_tokens(Pass& pass, const Tensor& x,
                                          std::string_view name) const {
  Stream& stream = pass.stream;
  const auto plan = plan_of<std::shared_ptr<Plan>>(pass);
  const int64_t width = x.dim(1);
  const Tensor sent =
      Tensor::empty(stream, "expert exchange", {plan->sent.slot_of_row.dim(0), width}, x.dtype());
  permute_rows(stream, sent, x, plan->sent);
  finish_plan(pass, *plan);
  const Tensor received =
      Tensor::empty(stream, "expert exchange", {plan->num_received(), width}, x.dtype());
  experts_.exchange->all_to_all(stream, received, plan->receive_rows, sent, plan->send_rows);
  const Tensor rows = Tensor::empty(stream, name, {plan->num_rows(), width}, x.dtype());
  permute_rows(stream, plan->kept(rows), received, plan->received);
  return rows;
}

Tensor AllToAllDispatcher::numbers_of_rows(Pass& pass, const Tensor& by_choice) const {
  Stream& stream = pass.stream;
  const auto plan = plan_of<std::shared_ptr<Plan>>(pass);
  const auto numbers = [&](int64_t size) {
    return Tensor::empty(stream, "router", {size}, by_choice.dtype());
  };
  const Tensor sent = numbers(plan->sent.slot_of_row.dim(0));
  const Tensor received = numbers(plan->num_received());
  gather_scalars(stream, sent, by_choice.reshape({by_choice.numel()}), plan->sent.slot_of_row,
                 experts_.etp_size);
  experts_.exchange->all_to_all(stream, received, plan->receive_rows, sent, plan->send_rows);
  const Tensor by_row = numbers(plan->num_rows());
  gather_scalars(stream, plan->kept(by_row), received, plan->received.slot_of_row);
  return by_row;
}

Tensor AllToAllDispatcher::offsets(Pass& pass) const {
  return plan_of<std::shared_ptr<Plan>>(pass)->offsets;
}

Tensor AllToAllDispatcher::tokens_of_rows(Pass& pass, const Tensor& rows,
                                          const Tensor& residual) const {
  Stream& stream = pass.stream;
  const auto plan = plan_of<std::shared_ptr<Plan>>(pass);
  const Tensor sent =
      Tensor::empty(stream, "expert exchange", {plan->num_received(), rows.dim(1)}, rows.dtype());
  combine_rows(stream, sent, plan->kept(rows), {}, plan->received);
  const Tensor returned = Tensor::empty(stream, "expert exchange",
                                        {plan->sent.slot_of_row.dim(0), rows.dim(1)}, rows.dtype());
  experts_.exchange->all_to_all(stream, returned, plan->send_rows, sent, plan->receive_rows);
  const Tensor y =
      Tensor::empty(stream, "moe output", {plan->num_tokens, rows.dim(1)}, rows.dtype());
  combine_rows(stream, y, returned, residual, plan->sent);
  return y;
}

Tensor AllToAllDispatcher::numbers_of_choices(Pass& pass, const Tensor& by_row) const {
  Stream& stream = pass.stream;
  const auto plan = plan_of<std::shared_ptr<Plan>>(pass);
  const auto numbers = [&](int64_t size) {
    return Tensor::empty(stream, "gradients", {size}, by_row.dtype());
  };
  const int64_t num_sent = plan->sent.row_of_slot.dim(0);
  const Tensor sent = numbers(plan->num_received()), returned = numbers(num_sent);
  gather_scalars(stream, sent, by_row, plan->received.row_of_slot);
  experts_.exchange->all_to_all(stream, returned, plan->send_rows, sent, plan->receive_rows);
  Tensor by_slot = numbers(num_sent);
  gather_scalars(stream, by_slot, returned, plan->sent.row_of_slot);
  if (experts_.etp_size > 1) {
    const Tensor sums = numbers(plan->num_tokens * plan->top_k);
    sum_copies(stream, sums, by_slot, experts_.etp_size);
    by_slot = sums;
  }
  return by_slot.reshape({plan->num_tokens, plan->top_k});
}

}  // namespace ferry
