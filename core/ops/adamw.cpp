#include "core/ops/adamw.h"

#include "core/ops/adamw_kernels.h"
#include "core/ops/run_op.h"
#include "core/ops/update_state.h"

namespace ferry {
namespace {

void check(const Tensor& value, const Tensor& master, const Tensor& exp_avg,
           const Tensor& exp_avg_sq, const Tensor& grad, const AdamwSettings& settings) {
  check_update_state(value, {&master, &grad}, {&exp_avg, &exp_avg_sq});
  CHECK(settings.step >= 1, "step ", settings.step);
}

}  // namespace

void adamw(Stream& stream, const Tensor& value, const Tensor& master, const Tensor& exp_avg,
           const Tensor& exp_avg_sq, const Tensor& grad, const AdamwSettings& settings) {
  check(value, master, exp_avg, exp_avg_sq, grad, settings);
  run_op(stream, cpu::adamw, cuda::adamw, value, master, exp_avg, exp_avg_sq, grad, settings);
}

void adamw_on_host(const Tensor& value, const Tensor& master, const Tensor& exp_avg,
                   const Tensor& exp_avg_sq, const Tensor& grad, const AdamwSettings& settings) {
  check(value, master, exp_avg, exp_avg_sq, grad, settings);
  check_on_host({&value, &master, &exp_avg, &exp_avg_sq, &grad});
  cpu::adamw(value, master, exp_avg, exp_avg_sq, grad, settings);
}

}  // namespace ferry
