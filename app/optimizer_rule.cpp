#include "app/optimizer_rule.h"

namespace ferry {

std::unique_ptr<UpdateRule> make_update_rule(const OptimizerTable& optimizer) {
  if (optimizer.name == "sgd") return make_sgd(optimizer.momentum);
  return make_adamw(optimizer.betas[0], optimizer.betas[1], optimizer.eps);
}

MomentTypes moment_types(const OptimizerTable& optimizer) {
  const auto type = [](const std::string& name) {
    return name == "bf16" ? std::optional(DType::BF16) : std::nullopt;
  };
  if (optimizer.name == "sgd") return {};
  return {type(optimizer.exp_avg_dtype), type(optimizer.exp_avg_sq_dtype)};
}

}  // namespace ferry
