#pragma once

// Each token goes to the ranks of its experts, and nowhere else: once to each of them, also if that
// has several of its experts. The rank that gets it makes the rows of its experts, and returns one
// row per token, the sum of what its experts made of it. With expert tensor parallelism a token
// goes to every rank that has a part of an expert's matrices; each of them returns a partial sum.
//
// The exchange itself has the size of what comes, so the host waits for the counts also with a
// RankCapacity; what the experts work on has a fixed size then.

#include "moe/dispatcher.h"

namespace ferry {

class AllToAllDispatcher final : public Dispatcher {
 public:
  AllToAllDispatcher(int64_t num_experts, const ExpertParallel& experts)
      : Dispatcher(experts), num_experts_(num_experts) {}

  void prepare(Pass& pass, const Routing& routing) override;

 protected:
  Tensor rows_of_tokens(Pass& pass, const Tensor& x, std::string_view name) const override;
  Tensor numbers_of_rows(Pass& pass, const Tensor& by_choice) const override;
  Tensor offsets(Pass& pass) const override;
  Exchanged return_rows(Pass& pass, Stream& exchange, const Tensor& rows) const override;
  Tensor tokens_of_returned(Pass& pass, const Tensor& returned,
                            const Tensor& residual) const override;
  Exchanged return_numbers(Pass& pass, Stream& exchange, const Tensor& by_row) const override;
  Tensor choices_of_returned(Pass& pass, const Tensor& returned) const override;

 private:
  struct Plan;
  std::shared_ptr<Plan> start_plan(Pass& pass, const Routing& routing) const;
  /// The host waits for the numbers of rows, if it does not know them yet.
  void learn_counts(Plan& plan) const;
  /// What becomes of the tokens that arrive.
  void plan_rows_here(Pass& pass, Plan& plan) const;
  /// [N, D] of the tokens that have experts on this rank, from everybody's own [T, D].
  Tensor bring(Pass& pass, Plan& plan, const Tensor& own) const;
  /// What everybody's [N, D] of the tokens that arrived, which the stream of the pass has made,
  /// have for this rank: a row for each rank that a token went to.
  Exchanged give_back(Pass& pass, Stream& exchange, const Plan& plan, const Tensor& arrived) const;
  /// Own [T, D] = residual (may be undefined) + the sum over the ranks that a token went to.
  Tensor sum_returned(Pass& pass, const Tensor& returned, const Tensor& residual,
                      std::string_view name) const;

  int64_t num_experts_;
};

}  // namespace ferry
