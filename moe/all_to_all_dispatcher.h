#pragma once

// Each token goes to the ranks of its experts, and nowhere else: rows are ordered by rank and
// expert, exchanged (all-to-all), and ordered by expert again where they arrive. With expert tensor
// parallelism a row goes to every rank that has a part of the expert's matrices; each of them
// returns a partial sum.

#include "moe/dispatcher.h"

namespace ferry {

class AllToAllDispatcher final : public Dispatcher {
 public:
  AllToAllDispatcher(int64_t num_experts, const ExpertParallel& experts)
      : num_experts_(num_experts), experts_(experts) {}

  void prepare(Pass& pass, const Routing& routing) override;
  Dispatched dispatch(Pass& pass, const Tensor& x, const Tensor& probs) override;
  Tensor combine(Pass& pass, const Tensor& rows, const Tensor& residual) override;
  Tensor combine_backward(Pass& pass, const Tensor& dy) override;
  Gradients dispatch_backward(Pass& pass, const Tensor& drows, const Tensor& dprobs,
                              const Tensor& dresidual) override;

 private:
  struct Plan;
  std::shared_ptr<Plan> start_plan(Stream& stream, const Routing& routing) const;
  void finish_plan(Stream& stream, Plan& plan) const;
  /// rows [R, hidden] of the tokens x [T, hidden].
  Tensor rows_of(Stream& stream, Plan& plan, const Tensor& x, std::string_view name) const;
  /// y [T, hidden] from rows [R, hidden].
  Tensor tokens_of(Stream& stream, const Plan& plan, const Tensor& rows,
                   const Tensor& residual) const;

  int64_t num_experts_;
  ExpertParallel experts_;
};

}  // namespace ferry
