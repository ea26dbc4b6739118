#include "moe/dispatcher.h"

#include "moe/all_gather_dispatcher.h"
#include "moe/all_to_all_dispatcher.h"
#include "moe/local_dispatcher.h"

namespace ferry {

Dispatched Dispatcher::dispatch(Pass& pass, const Tensor& x, const Tensor& probs) {
  Dispatched result;
  if (const std::optional<Rows> rows = rows_in_place(pass, x)) {
    result.rows = *rows;
  } else {
    result.rows = rows_of_tokens(pass, x, name_of(Label::ExpertFc1));
    const auto rebuild = [this, &pass](Stream&, std::span<const Tensor> inputs) {
      return rows_of_tokens(pass, inputs[0], name_of(Label::ExpertFc1));
    };
    pass.tape().save_rebuildable(Label::MoePermute, result.rows.x, {x}, rebuild);
  }
  result.probs = numbers_of_rows(pass, probs);
  result.offsets = offsets(pass);
  return result;
}

Tensor Dispatcher::combine(Pass& pass, const Tensor& rows, const Tensor& residual) {
  return tokens_of_returned(pass, return_rows(pass, pass.stream, rows).received, residual);
}

Tensor Dispatcher::combine_backward(Pass& pass, const Tensor& dy) {
  return rows_of_tokens(pass, dy, "gradients");
}

Dispatcher::Returning Dispatcher::start_dispatch_backward(Pass& pass, const Tensor& drows,
                                                          const Tensor& dprobs) {
  Stream& exchange = beside(pass);
  Returning returning;
  returning.numbers = return_numbers(pass, exchange, dprobs);
  returning.rows = return_rows(pass, exchange, drows);
  return returning;
}

Tensor Dispatcher::probs_gradient(Pass& pass, const Returning& returning) const {
  pass.stream.wait(returning.numbers.arrived);
  return choices_of_returned(pass, returning.numbers.received);
}

Tensor Dispatcher::x_gradient(Pass& pass, const Returning& returning,
                              const Tensor& dresidual) const {
  pass.stream.wait(returning.rows.arrived);
  return tokens_of_returned(pass, returning.rows.received, dresidual);
}

std::unique_ptr<Dispatcher> make_dispatcher(const std::string& kind, int64_t num_experts,
                                            const ExpertParallel& experts, bool gather) {
  if (experts.size() == 1) return std::make_unique<LocalDispatcher>(gather);
  if (kind == "allgather") return std::make_unique<AllGatherDispatcher>(num_experts, experts);
  CHECK(kind == "alltoall", "no dispatcher is called ", kind);
  return std::make_unique<AllToAllDispatcher>(num_experts, experts);
}

}  // namespace ferry
