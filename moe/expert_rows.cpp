#include "moe/expert_rows.h"

#include <algorithm>

#include "core/ops/row_capacity.h"

namespace ferry {

ExpertRows ExpertRows::of_all(const Routing& routing) {
  const int64_t num_slots = routing.experts.numel();
  return {routing.experts.dim(0), routing.experts.dim(1), routing.plan, routing.plan.offsets,
          num_slots};
}

ExpertRows ExpertRows::of_rank(Pass& pass, const Tensor& choices, int64_t num_experts,
                               const ExpertParallel& experts, std::optional<int64_t> limit) {
  Stream& stream = pass.stream;
  const int64_t num_local = experts.num_local(num_experts);
  localise_experts(stream, choices, choices, experts.first_local(num_experts), num_local);
  const RoutingPlan plan = RoutingPlan::empty(stream, num_local + 1, choices.numel());
  make_routing_plan(stream, plan, choices);
  Tensor offsets = plan.offsets.rows(0, num_local + 1);
  if (limit) {
    offsets = Tensor::empty(stream, "routing plan", {num_local + 1}, DType::I32);
    const Tensor num_over = pass.totals.get(stream, "over_capacity", {1}, DType::I32);
    limit_rows(stream, offsets, num_over, plan, *limit);
  }
  return {choices.dim(0), choices.dim(1), plan, offsets, limit.value_or(-1)};
}

Tensor ExpertRows::planned(const Tensor& of_rows) const {
  return of_rows.rows(0, std::min(of_rows.dim(0), plan.slot_of_row.dim(0)));
}

Tensor ExpertRows::rows_of_tokens(Stream& stream, const Tensor& tokens,
                                  std::string_view name) const {
  const Tensor rows = Tensor::empty(stream, name, {num_rows, tokens.dim(1)}, tokens.dtype());
  permute_rows(stream, planned(rows), tokens, plan);
  return rows;
}

Tensor ExpertRows::numbers_of_rows(Stream& stream, const Tensor& by_choice) const {
  const Tensor by_row = Tensor::empty(stream, "router", {num_rows}, by_choice.dtype());
  gather_scalars(stream, planned(by_row), by_choice.reshape({by_choice.numel()}), plan.slot_of_row);
  return by_row;
}

Tensor ExpertRows::tokens_of_rows(Stream& stream, const Tensor& rows, const Tensor& residual,
                                  std::string_view name) const {
  const Tensor y = Tensor::empty(stream, name, {num_tokens, rows.dim(1)}, rows.dtype());
  combine_rows(stream, y, planned(rows), residual, plan);
  return y;
}

Tensor ExpertRows::numbers_of_choices(Stream& stream, const Tensor& by_row) const {
  const Tensor by_choice = Tensor::empty(stream, "gradients", {num_tokens, top_k}, by_row.dtype());
  gather_scalars(stream, by_choice.reshape({by_choice.numel()}), by_row, plan.row_of_slot);
  return by_choice;
}

}  // namespace ferry
