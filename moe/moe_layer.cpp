#include "moe/moe_layer.h"

#include "core/ops/elementwise.h"

namespace ferry {
namespace {

MlpConfig with_ffn(MlpConfig config, int64_t ffn) {
  config.ffn = ffn;
  return config;
}

}  // namespace

MoeLayer::MoeLayer(const std::string& name, const MoeConfig& config, const MlpConfig& mlp,
                   const std::string& force_routing, uint64_t seed)
    : router_(name + "/router", mlp.hidden, config, mlp.init_std, mlp.dtype, force_routing, seed),
      experts_(name + "/experts", config.experts, with_ffn(mlp, config.ffn)) {
  if (config.shared_ffn > 0)
    shared_ = std::make_unique<SharedExperts>(name + "/shared_experts",
                                              with_ffn(mlp, config.shared_ffn), config.shared_gate);
}

Tensor MoeLayer::forward(Pass& pass, const Tensor& x) {
  const Tensor shared = shared_ ? shared_->forward(pass, x) : Tensor();
  const Routing routing = router_.forward(pass, x);
  const Dispatched sent = dispatcher_.dispatch(pass, x, routing);
  const Tensor rows = experts_.forward(pass, sent.rows, sent.probs, sent.offsets);
  const RoutingPlan& plan = routing.plan;
  pass.tape().save(pass.stream, Label::Moe,
                   {plan.counts, plan.offsets, plan.row_of_slot, plan.slot_of_row});
  return dispatcher_.combine(pass, rows, shared, plan);
}

Tensor MoeLayer::backward(Pass& pass, const Tensor& dy) {
  const auto [counts, offsets, row_of_slot, slot_of_row] =
      pass.tape().load<4>(pass.stream, Label::Moe);
  const RoutingPlan plan{counts, offsets, row_of_slot, slot_of_row};

  const Tensor drows = dispatcher_.combine_backward(pass, dy, plan);
  const auto grads = experts_.backward(pass, drows, plan.offsets);
  const auto sent = dispatcher_.dispatch_backward(pass, grads.rows, grads.probs, {}, plan);
  const Tensor dx = router_.backward(pass, sent.probs);
  add(pass.stream, dx, dx, sent.x);
  if (shared_) add(pass.stream, dx, dx, shared_->backward(pass, dy));
  return dx;
}

void MoeLayer::visit(const ParameterVisitor& visitor) {
  if (shared_) shared_->visit(visitor);
  router_.visit(visitor);
  experts_.visit(visitor);
}

}  // namespace ferry
