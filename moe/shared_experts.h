#pragma once

// A dense MLP that every token uses, beside the routed experts; with `gate`, its output is
// multiplied by sigmoid(x * gate^T). With tensor parallelism a rank has its own tokens and a part
// of the MLP's width, as under sequence parallelism.

#include <optional>
#include <string>

#include "core/module.h"
#include "layers/mlp.h"

namespace ferry {

class SharedExperts final : public Module {
 public:
  /// `name`: "layers/7/moe/shared_experts".
  SharedExperts(const std::string& name, const MlpConfig& config, bool gate,
                const TensorParallel& tensor = {});

  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void visit(const ParameterVisitor& visitor) override;

 private:
  Mlp mlp_;
  bool has_gate_;
  Parameter gate_;  // [1, hidden]
};

}  // namespace ferry
