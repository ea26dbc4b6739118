#pragma once

// Each token goes to the ranks of its experts, and nowhere else: rows are ordered by rank and
// expert, exchanged (all-to-all), and ordered by expert again where they arrive. With expert tensor
// parallelism a row goes to every rank that has a part of the expert's matrices; each of them
// returns a partial sum.
//
// The exchange itself has the size of what comes, so the host waits for the counts also with a
// RankCapacity; what the experts work on has a fixed size then.

#include "moe/dispatcher.h"

namespace ferry {

class AllToAllDispatcher final : public Dispatcher {
 public:
  AllToAllDispatcher(int64_t num_experts, const ExpertParallel& experts)
      : num_experts_(num_experts), experts_(experts) {}

  void prepare(Pass& pass, const Routing& routing) override;

 protected:
  Tensor rows_of_tokens(Pass& pass, const Tensor& x, std::string_view name) const override;
  Tensor numbers_of_rows(Pass& pass, const Tensor& by_choice) const override;
  Tensor offsets(Pass& pass) const override;
  Tensor tokens_of_rows(Pass& pass, const Tensor& rows, const Tensor& residual) const override;
  Tensor numbers_of_choices(Pass& pass, const Tensor& by_row) const override;

 private:
  struct Plan;
  std::shared_ptr<Plan> start_plan(Pass& pass, const Routing& routing) const;
  void finish_plan(Pass& pass, Plan& plan) const;

  int64_t num_experts_;
  ExpertParallel experts_;
};

}  // namespace ferry
