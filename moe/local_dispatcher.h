#pragma once

// All experts on this rank: a permutation and its inverse, no communication and no host.

#include "moe/dispatcher.h"

namespace ferry {

class LocalDispatcher final : public Dispatcher {
 public:
  void prepare(Pass& pass, const Routing& routing) override;
  Dispatched dispatch(Pass& pass, const Tensor& x, const Tensor& probs) override;
  Tensor combine(Pass& pass, const Tensor& rows, const Tensor& residual) override;
  Tensor combine_backward(Pass& pass, const Tensor& dy) override;
  Gradients dispatch_backward(Pass& pass, const Tensor& drows, const Tensor& dprobs,
                              const Tensor& dresidual) override;

 private:
  struct Plan {
    RoutingPlan rows;
    int64_t num_tokens;
  };
};

}  // namespace ferry
