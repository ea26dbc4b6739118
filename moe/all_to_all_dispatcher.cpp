#include "moe/all_to_all_dispatcher.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "moe/expert_rows.h"

namespace ferry {
namespace {

int64_t total(const std::vector<int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

}  // namespace

struct AllToAllDispatcher::Plan {
  int64_t num_tokens = 0;        // of this rank
  RoutingPlan sent;              // [2 * ranks] groups (find_destinations)
  std::optional<int64_t> limit;  // of the rows of experts

  Tensor host_counts;  // [ranks, 2 * ranks]: of the plan of each rank, until the host knows them
  Event counts_arrived;
  bool counts_known() const { return !host_counts.defined(); }
  std::vector<int64_t> send_rows, receive_rows;  // of each rank
  int64_t num_rows = 0;                          // of the experts, without a limit

  Tensor experts;   // [T, k], until here is made
  ExpertRows here;  // of the tokens that arrived
};

void AllToAllDispatcher::prepare(Pass& pass, const Routing& routing) {
  keep_plan(pass, [&] { return start_plan(pass, routing); });
}

std::shared_ptr<AllToAllDispatcher::Plan> AllToAllDispatcher::start_plan(
    Pass& pass, const Routing& routing) const {
  Stream& stream = pass.stream;
  const int64_t ranks = experts_.size(), num_tokens = routing.experts.dim(0);
  auto plan = std::make_shared<Plan>();
  plan->num_tokens = num_tokens;
  plan->limit = row_limit(pass, routing);
  plan->experts = routing.experts;
  const Tensor destinations = Tensor::empty(
      stream, "routing plan", {num_tokens, routing.experts.dim(1) * experts_.etp_size}, DType::I32);
  find_destinations(stream, destinations, routing.experts, experts_.num_local(num_experts_),
                    experts_.etp_size, ranks);
  plan->sent = RoutingPlan::empty(stream, 2 * ranks, destinations.numel());
  make_routing_plan(stream, plan->sent, destinations);

  Stream& side = beside(pass);
  const Tensor own_counts = plan->sent.counts.reshape({1, 2 * ranks});
  follow(side, stream);
  side.hold(own_counts);
  const Tensor counts = Tensor::empty(side, "routing plan", {ranks, 2 * ranks}, DType::I32);
  experts_.exchange->all_gather(side, counts, own_counts);
  plan->host_counts = Tensor::host(side.device(), "routing plan", counts.shape(), DType::I32);
  side.copy(plan->host_counts, counts);
  plan->counts_arrived = side.record();
  return plan;
}

void AllToAllDispatcher::learn_counts(Plan& plan) const {
  if (plan.counts_known()) return;
  plan.counts_arrived.wait_host();
  const int64_t ranks = experts_.size(), own_rank = experts_.exchange->rank();
  const int32_t* counts = plan.host_counts.data<int32_t>();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int32_t* of_rank = counts + rank * 2 * ranks;
    plan.send_rows.push_back(counts[own_rank * 2 * ranks + rank]);
    plan.receive_rows.push_back(of_rank[own_rank]);
    plan.num_rows += of_rank[own_rank] + of_rank[ranks + own_rank];
  }
  plan.host_counts = Tensor();
}

void AllToAllDispatcher::plan_rows_here(Pass& pass, Plan& plan) const {
  if (!plan.experts.defined()) return;
  plan.here = ExpertRows::of_rank(pass, bring(pass, plan, plan.experts), num_experts_, experts_,
                                  plan.limit);
  plan.here.num_rows = plan.limit.value_or(plan.num_rows);
  plan.experts = Tensor();
}

Tensor AllToAllDispatcher::bring(Pass& pass, Plan& plan, const Tensor& own) const {
  Stream& stream = pass.stream;
  // The first call does not know how many rows there are to send. So that the device has work while
  // the host waits for that, as many are filled as there may be.
  const int64_t num_sent = plan.counts_known() ? total(plan.send_rows)
                                               : std::min(plan.sent.slot_of_row.dim(0),
                                                          experts_.size() * plan.num_tokens);
  const Tensor sent = Tensor::empty(stream, "expert exchange", {num_sent, own.dim(1)}, own.dtype());
  permute_rows(stream, sent, own, plan.sent);
  learn_counts(plan);
  const Tensor arrived =
      Tensor::empty(stream, "expert exchange", {total(plan.receive_rows), own.dim(1)}, own.dtype());
  experts_.exchange->all_to_all(stream, arrived, plan.receive_rows, sent, plan.send_rows);
  return arrived;
}

Dispatcher::Exchanged AllToAllDispatcher::give_back(Pass& pass, Stream& exchange, const Plan& plan,
                                                    const Tensor& arrived) const {
  const Tensor returned = Tensor::empty(pass.stream, "expert exchange",
                                        {total(plan.send_rows), arrived.dim(1)}, arrived.dtype());
  follow(exchange, pass.stream);
  experts_.exchange->all_to_all(exchange, returned, plan.send_rows, arrived, plan.receive_rows);
  return {returned, arrived, arrival(exchange, pass)};
}

Tensor AllToAllDispatcher::sum_returned(Pass& pass, const Tensor& returned, const Tensor& residual,
                                        std::string_view name) const {
  const auto plan = plan_of<std::shared_ptr<Plan>>(pass);
  const Tensor own =
      Tensor::empty(pass.stream, name, {plan->num_tokens, returned.dim(1)}, returned.dtype());
  combine_rows(pass.stream, own, returned, residual, plan->sent);
  return own;
}

Tensor AllToAllDispatcher::rows_of_tokens(Pass& pass, const Tensor& x,
                                          std::string_view name) const {
  const auto plan = plan_of<std::shared_ptr<Plan>>(pass);
  const Tensor arrived = bring(pass, *plan, x);
  // After the large exchange, so that the device has work while the host enqueues the many small
  // kernels of the plan.
  plan_rows_here(pass, *plan);
  return plan->here.rows_of_tokens(pass.stream, arrived, name);
}

Tensor AllToAllDispatcher::numbers_of_rows(Pass& pass, const Tensor& by_choice) const {
  const auto plan = plan_of<std::shared_ptr<Plan>>(pass);
  return plan->here.numbers_of_rows(pass.stream, bring(pass, *plan, by_choice));
}

Tensor AllToAllDispatcher::offsets(Pass& pass) const {
  return plan_of<std::shared_ptr<Plan>>(pass)->here.offsets;
}

Dispatcher::Exchanged AllToAllDispatcher::return_rows(Pass& pass, Stream& exchange,
                                                      const Tensor& rows) const {
  const auto plan = plan_of<std::shared_ptr<Plan>>(pass);
  return give_back(pass, exchange, *plan,
                   plan->here.tokens_of_rows(pass.stream, rows, {}, "expert exchange"));
}

Tensor AllToAllDispatcher::tokens_of_returned(Pass& pass, const Tensor& returned,
                                              const Tensor& residual) const {
  return sum_returned(pass, returned, residual, "moe output");
}

Dispatcher::Exchanged AllToAllDispatcher::return_numbers(Pass& pass, Stream& exchange,
                                                         const Tensor& by_row) const {
  const auto plan = plan_of<std::shared_ptr<Plan>>(pass);
  return give_back(pass, exchange, *plan, plan->here.numbers_of_choices(pass.stream, by_row));
}

Tensor AllToAllDispatcher::choices_of_returned(Pass& pass, const Tensor& returned) const {
  return sum_returned(pass, returned, {}, "gradients");
}

}  // namespace ferry
