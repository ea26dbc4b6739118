#include "moe/local_dispatcher.h"

#include "moe/expert_rows.h"

namespace ferry {

void LocalDispatcher::prepare(Pass& pass, const Routing& routing) {
  keep_plan(pass, [&] { return ExpertRows::of_all(routing); });
}

std::optional<Rows> LocalDispatcher::rows_in_place(Pass& pass, const Tensor& x) const {
  if (!gather_) return std::nullopt;
  return Rows(x, plan_of<ExpertRows>(pass).plan.slot_of_row);
}

Tensor LocalDispatcher::rows_of_tokens(Pass& pass, const Tensor& x, std::string_view name) const {
  return plan_of<ExpertRows>(pass).rows_of_tokens(pass.stream, x, name);
}

Tensor LocalDispatcher::numbers_of_rows(Pass& pass, const Tensor& by_choice) const {
  return plan_of<ExpertRows>(pass).numbers_of_rows(pass.stream, by_choice);
}

Tensor LocalDispatcher::offsets(Pass& pass) const { return plan_of<ExpertRows>(pass).offsets; }

Tensor LocalDispatcher::tokens_of_returned(Pass& pass, const Tensor& returned,
                                           const Tensor& residual) const {
  return plan_of<ExpertRows>(pass).tokens_of_rows(pass.stream, returned, residual, "moe output");
}

Tensor LocalDispatcher::choices_of_returned(Pass& pass, const Tensor& returned) const {
  return plan_of<ExpertRows>(pass).numbers_of_choices(pass.stream, returned);
}

}  // namespace ferry
