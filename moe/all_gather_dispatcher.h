#pragma once

// Every rank gets the tokens of all ranks (all-gather), takes the rows of its own experts, and sums
// its results with the others' (reduce-scatter). Few large messages instead of many small ones;
// more memory and traffic than all-to-all, unless nearly all tokens have experts on nearly all
// ranks. With a RankCapacity the host waits for nothing.

#include "moe/dispatcher.h"

namespace ferry {

class AllGatherDispatcher final : public Dispatcher {
 public:
  AllGatherDispatcher(int64_t num_experts, const ExpertParallel& experts)
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
  /// All ranks' tokens [ranks * T, ...], and this rank's share of the sum of such tensors, which
  /// the stream of the pass has made.
  Tensor gather(Stream& stream, const Tensor& own) const;
  Exchanged sum_scatter(Pass& pass, Stream& exchange, const Tensor& all) const;

  int64_t num_experts_;
};

}  // namespace ferry
