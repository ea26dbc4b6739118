#pragma once

// The arithmetic of an update, apart from where its tensors are and when it happens.

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/ops/adamw.h"
#include "core/ops/sgd.h"
#include "core/tensor.h"

namespace ferry {

/// What the optimizer keeps for a parameter, with the shape of its value.
struct ParameterState {
  Tensor master;  // accumulate_dtype(value); the value's memory if that has full precision itself
  std::vector<Tensor> moments;  // as many as the rule has
};

/// What changes from one update to the next, and is the same for all parameters.
struct UpdateScalars {
  double lr = 0;
  double weight_decay = 0;  // of parameters with decay; they know whether they have it
  double grad_scale = 1;    // multiplies gradients: normalisation and clipping
  int64_t step = 1;         // counts from 1
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  /// Names of the moments, as in a checkpoint. Moments begin as zeros.
  virtual std::span<const std::string_view> moment_names() const = 0;
  /// One update of all elements; `scalars.weight_decay` is that of this parameter. Enqueued.
  virtual void update(Stream& stream, const Tensor& value, const ParameterState& state,
                      const Tensor& grad, const UpdateScalars& scalars) const = 0;
  /// The same bits in host memory, by the calling thread, at once.
  virtual void update_on_host(const Tensor& value, const ParameterState& state, const Tensor& grad,
                              const UpdateScalars& scalars) const = 0;
};

/// core/ops/adamw.h: exp_avg, exp_avg_sq.
std::unique_ptr<UpdateRule> make_adamw(double beta1, double beta2, double eps);
/// core/ops/sgd.h: momentum.
std::unique_ptr<UpdateRule> make_sgd(double momentum);

}  // namespace ferry
