#pragma once

// The router of a MoE layer: logits in FP32 from an FP32 weight, the top-k gate, the losses that
// keep the experts evenly loaded, and the plan that moves tokens to experts.
//
// T tokens of this rank, E experts, k = top_k. Order: gating, z-loss, top-k, load-balancing loss,
// counts.
//
// Both losses are per micro-batch means. What the model differentiates is a sum over tokens, so
// their gradients are multiplied by the micro-batch's number of loss tokens: after the division by
// the tokens of the global batch each micro-batch weighs in with its share, as in Megatron-LM.
// Logged (step totals "aux_loss", "z_loss"): the mean-scale value without coefficient, counted once
// per micro-batch and MoE layer, also when forward runs twice. Where tensor parallelism cuts the
// tokens of a micro-batch over ranks, the losses are still those of all its tokens, each rank logs
// its part, and the total is the sum over the ranks.

#include <functional>
#include <memory>
#include <string>

#include "core/module.h"
#include "core/ops/permute.h"
#include "core/ops/topk_gate.h"
#include "layers/tensor_parallel.h"
#include "moe/forced_routing.h"
#include "moe/moe_config.h"

namespace ferry {

struct Routing {
  RoutingPlan plan;
  Tensor probs;    // [T, k]
  Tensor experts;  // [T, k] I32
};

/// A Module whose result is a routing.
class RoutingModule {
 public:
  virtual ~RoutingModule() = default;
  /// x [T, hidden].
  virtual Routing forward(Pass& pass, const Tensor& x) = 0;
  /// dx [T, hidden] in the dtype of activations, from dprobs [T, k].
  virtual Tensor backward(Pass& pass, const Tensor& dprobs) = 0;
  virtual void visit(const ParameterVisitor& visitor) = 0;
};

/// What stands in the place of a router; see layers/module_decorator.h.
using RouterDecorator =
    std::function<std::unique_ptr<RoutingModule>(std::unique_ptr<RoutingModule>)>;
inline std::unique_ptr<RoutingModule> undecorated_router(std::unique_ptr<RoutingModule> router) {
  return router;
}

class Router final : public RoutingModule {
 public:
  /// `name`: "layers/7/moe/router". `dtype` is that of the activations; the router computes in
  /// accumulate_dtype of it.
  Router(const std::string& name, int64_t hidden, const MoeConfig& config, double init_std,
         DType dtype, const std::string& force_routing, uint64_t seed,
         const TensorParallel& tensor = {});

  Routing forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dprobs) override;
  void visit(const ParameterVisitor& visitor) override { visitor(weight_); }

  /// Step total of the tokens of each expert, [E] I64.
  const std::string& counts_name() const { return counts_name_; }

 private:
  void record_losses(Pass& pass, const GateResult& gate, const RoutingPlan& plan,
                     const Tensor& expert_gradient);

  Parameter weight_;  // [E, hidden] accumulate_dtype: the router is never rounded to bf16
  int64_t top_k_;
  bool pre_softmax_;
  double aux_coeff_;
  double z_coeff_;
  TensorParallel tensor_;  // its ranks have the other tokens of the micro-batch
  ForcedRouting forced_;
  std::string counts_name_;
};

}  // namespace ferry
