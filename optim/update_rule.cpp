#include "optim/update_rule.h"

#include <array>

namespace ferry {
namespace {

class Adamw final : public UpdateRule {
 public:
  Adamw(double beta1, double beta2, double eps) {
    settings_.beta1 = beta1;
    settings_.beta2 = beta2;
    settings_.eps = eps;
  }
  std::span<const std::string_view> moment_names() const override {
    static constexpr std::array<std::string_view, 2> kNames = {"exp_avg", "exp_avg_sq"};
    return kNames;
  }
  void update(Stream& stream, const Tensor& value, const ParameterState& state, const Tensor& grad,
              const UpdateScalars& scalars) const override {
    adamw(stream, value, state.master, state.moments[0], state.moments[1], grad, settings(scalars));
  }
  void update_on_host(const Tensor& value, const ParameterState& state, const Tensor& grad,
                      const UpdateScalars& scalars) const override {
    adamw_on_host(value, state.master, state.moments[0], state.moments[1], grad, settings(scalars));
  }

 private:
  AdamwSettings settings(const UpdateScalars& scalars) const {
    AdamwSettings settings = settings_;
    settings.lr = scalars.lr;
    settings.weight_decay = scalars.weight_decay;
    settings.step = scalars.step;
    settings.grad_scale = scalars.grad_scale;
    return settings;
  }
  AdamwSettings settings_;
};

class Sgd final : public UpdateRule {
 public:
  explicit Sgd(double momentum) : momentum_(momentum) {}
  std::span<const std::string_view> moment_names() const override {
    static constexpr std::array<std::string_view, 1> kNames = {"momentum"};
    return kNames;
  }
  void update(Stream& stream, const Tensor& value, const ParameterState& state, const Tensor& grad,
              const UpdateScalars& scalars) const override {
    sgd(stream, value, state.master, state.moments[0], grad, settings(scalars));
  }
  void update_on_host(const Tensor& value, const ParameterState& state, const Tensor& grad,
                      const UpdateScalars& scalars) const override {
    sgd_on_host(value, state.master, state.moments[0], grad, settings(scalars));
  }

 private:
  SgdSettings settings(const UpdateScalars& scalars) const {
    return {scalars.lr, momentum_, scalars.weight_decay, scalars.grad_scale};
  }
  double momentum_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_adamw(double beta1, double beta2, double eps) {
  return std::make_unique<Adamw>(beta1, beta2, eps);
}

std::unique_ptr<UpdateRule> make_sgd(double momentum) { return std::make_unique<Sgd>(momentum); }

}  // namespace ferry
