#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "core/host_copy.h"
#include "core/ops/reduce.h"

namespace ferry {

Optimizer::Optimizer(Stream& stream, std::vector<Parameter*> owned, const UpdateRule& rule,
                     StateStore& store)
    : owned_(std::move(owned)),
      rule_(rule),
      store_(store),
      sum_squares_(Tensor::empty(stream, "gradient norm", {1}, DType::F64)) {}

double Optimizer::sum_squares(Stream& stream) {
  stream.zero(sum_squares_);
  for (const Parameter* parameter : owned_)
    if (!parameter->is_copy) ferry::sum_squares(stream, sum_squares_, parameter->grad);
  return read_back<double>(stream, sum_squares_)[0];
}

void Optimizer::update(Stream& stream, const OptimizerSettings& settings, int64_t step,
                       double num_tokens, double gradient_norm) {
  CHECK(std::isfinite(gradient_norm), "an update with non-finite gradients");
  store_.update(stream, rule_,
                {settings.lr, settings.weight_decay,
                 gradient_scale(num_tokens, gradient_norm, settings.clip_norm), step});
}

double gradient_norm(double sum_squares, double num_tokens) {
  return std::sqrt(sum_squares) / num_tokens;
}

double gradient_scale(double num_tokens, double gradient_norm, double clip_norm) {
  const double clip = clip_norm > 0 ? std::min(1.0, clip_norm / (gradient_norm + 1e-6)) : 1.0;
  return clip / num_tokens;
}

}  // namespace ferry
