#pragma once

// Moving tokens to the ranks and experts that compute them, and results back.
//
//   dispatch(x)  -> rows ordered by expert      combine(rows) -> one row per token
//
// The backward of dispatch is combine, the backward of combine is dispatch, with the same plan.

#include "core/module.h"
#include "moe/router.h"

namespace ferry {

/// What the experts of this rank work on.
struct Dispatched {
  Tensor rows;     // [R, hidden]
  Tensor probs;    // [R]
  Tensor offsets;  // [local experts + 1] I32
};

class Dispatcher {
 public:
  virtual ~Dispatcher() = default;
  virtual Dispatched dispatch(Pass& pass, const Tensor& x, const Routing& routing) = 0;
  /// y [T, hidden] = residual (may be undefined) + sum over the k rows of each token.
  virtual Tensor combine(Pass& pass, const Tensor& rows, const Tensor& residual,
                         const RoutingPlan& plan) = 0;
  /// Gradients of combine: drows [R, hidden] from dy [T, hidden].
  virtual Tensor combine_backward(Pass& pass, const Tensor& dy, const RoutingPlan& plan) = 0;
  /// Gradients of dispatch: dx [T, hidden] = dresidual + ..., and dprobs [T, k].
  struct Gradients {
    Tensor x;
    Tensor probs;
  };
  virtual Gradients dispatch_backward(Pass& pass, const Tensor& drows, const Tensor& dprobs,
                                      const Tensor& dresidual, const RoutingPlan& plan) = 0;
};

/// All experts on this rank: a permutation and its inverse, no communication and no host.
class LocalDispatcher final : public Dispatcher {
 public:
  Dispatched dispatch(Pass& pass, const Tensor& x, const Routing& routing) override;
  Tensor combine(Pass& pass, const Tensor& rows, const Tensor& residual,
                 const RoutingPlan& plan) override;
  Tensor combine_backward(Pass& pass, const Tensor& dy, const RoutingPlan& plan) override;
  Gradients dispatch_backward(Pass& pass, const Tensor& drows, const Tensor& dprobs,
                              const Tensor& dresidual, const RoutingPlan& plan) override;
};

}  // namespace ferry
