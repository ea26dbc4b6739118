#pragma once

// A router as graphs, see layers/part_graphs.h.

#include <memory>
#include <utility>

#include "layers/part_graphs.h"
#include "moe/router.h"

namespace ferry {

class GraphedRouter final : public RoutingModule {
 public:
  GraphedRouter(std::unique_ptr<RoutingModule> inner, PartGraphs& graphs)
      : inner_(std::move(inner)), part_(graphs) {}

  Routing forward(Pass& pass, const Tensor& x) override {
    return part_.forward(pass, x, [&](const Tensor& in) { return inner_->forward(pass, in); });
  }
  Tensor backward(Pass& pass, const Tensor& dprobs) override {
    return part_.backward(pass, dprobs,
                          [&](const Tensor& in) { return inner_->backward(pass, in); });
  }
  void visit(const ParameterVisitor& visitor) override { inner_->visit(visitor); }

 private:
  std::unique_ptr<RoutingModule> inner_;
  PartGraph<Routing> part_;
};

}  // namespace ferry
