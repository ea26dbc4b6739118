#include "moe/moe_layer.h"

#include "core/ops/elementwise.h"
#include "moe/shared_experts.h"

namespace ferry {
namespace {

MlpConfig with_ffn(MlpConfig config, int64_t ffn) {
  config.ffn = ffn;
  return config;
}

}  // namespace

MoeLayer::MoeLayer(const std::string& name, const MoeConfig& config, const MlpConfig& mlp,
                   const std::string& force_routing, uint64_t seed, const TensorParallel& tensor,
                   const ExpertParallel& experts, const ModuleDecorator& decorate,
                   const RouterDecorator& decorate_router)
    : dispatcher_(make_dispatcher(config.dispatcher, config.experts, experts, config.gather)),
      experts_(name + "/experts", config.experts, with_ffn(mlp, config.ffn), experts,
               config.fused_experts) {
  auto router = std::make_unique<Router>(name + "/router", mlp.hidden, config, mlp.init_std,
                                         mlp.dtype, force_routing, seed, tensor);
  counts_name_ = router->counts_name();
  router_ = decorate_router(std::move(router));
  if (config.shared_ffn > 0)
    shared_ = decorate(
        Label::SharedExperts,
        std::make_unique<SharedExperts>(name + "/shared_experts", with_ffn(mlp, config.shared_ffn),
                                        config.shared_gate, tensor));
}

Tensor MoeLayer::forward(Pass& pass, const Tensor& x) {
  const Routing routing = router_->forward(pass, x);
  dispatcher_->prepare(pass, routing);
  // While the numbers of rows reach the host.
  const Tensor shared = shared_ ? shared_->forward(pass, x) : Tensor();
  const Dispatched sent = dispatcher_->dispatch(pass, x, routing.probs);
  const Tensor rows = experts_.forward(pass, sent.rows, sent.probs, sent.offsets);
  return dispatcher_->combine(pass, rows, shared);
}

Tensor MoeLayer::backward(Pass& pass, const Tensor& dy) {
  auto [gradients, fc1] = experts_.backward(pass, dispatcher_->combine_backward(pass, dy));
  const Dispatcher::Returning returning =
      dispatcher_->start_dispatch_backward(pass, gradients.rows, gradients.probs);
  gradients = {};
  // Beside the exchange.
  const Tensor dshared = shared_ ? shared_->backward(pass, dy) : Tensor();
  const Tensor dx = router_->backward(pass, dispatcher_->probs_gradient(pass, returning));
  experts_.backward_fc1_weight(pass.stream, fc1);
  fc1 = {};
  if (shared_) add(pass.stream, dx, dx, dshared);
  return dispatcher_->x_gradient(pass, returning, dx);
}

void MoeLayer::visit(const ParameterVisitor& visitor) {
  if (shared_) shared_->visit(visitor);
  router_->visit(visitor);
  experts_.visit(visitor);
}

}  // namespace ferry
