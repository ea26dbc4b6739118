#pragma once

// A Mixture-of-Experts layer: route, shared experts, dispatch, experts, combine.
//
// It works on the rank's own tokens: with tensor parallelism, on its piece of the micro-batch's
// rows, as under sequence parallelism (layers/sequence_slice.h makes such a piece where that is
// off).

#include <memory>
#include <string>

#include "core/module.h"
#include "layers/module_decorator.h"
#include "moe/dispatcher.h"
#include "moe/experts.h"
#include "moe/router.h"

namespace ferry {

class MoeLayer final : public Module {
 public:
  /// `name`: "layers/7/moe". mlp.ffn is not used: the experts' widths come from `config`.
  /// `decorate` is asked about Label::SharedExperts.
  MoeLayer(const std::string& name, const MoeConfig& config, const MlpConfig& mlp,
           const std::string& force_routing, uint64_t seed, const TensorParallel& tensor = {},
           const ExpertParallel& experts = {}, const ModuleDecorator& decorate = undecorated,
           const RouterDecorator& decorate_router = undecorated_router);

  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void visit(const ParameterVisitor& visitor) override;

  /// See Router::counts_name().
  const std::string& counts_name() const { return counts_name_; }

 private:
  std::string counts_name_;
  std::unique_ptr<RoutingModule> router_;
  std::unique_ptr<Dispatcher> dispatcher_;
  Experts experts_;
  std::unique_ptr<Module> shared_;  // null: the layer has none
};

}  // namespace ferry
