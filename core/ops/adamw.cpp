#include "core/ops/adamw.h"

#include "core/ops/adamw_kernels.h"
#include "core/ops/run_op.h"

namespace ferry {

void adamw(Stream& stream, const Tensor& value, const Tensor& master, const Tensor& exp_avg,
           const Tensor& exp_avg_sq, const Tensor& grad, const AdamwSettings& settings) {
  CHECK(value.defined(), "value is undefined");
  for (const Tensor* state : {&master, &exp_avg, &exp_avg_sq, &grad}) {
    CHECK(state->defined() && state->numel() == value.numel(), "state of shape ", state->shape(),
          " for a parameter of shape ", value.shape());
    CHECK(state->dtype() == accumulate_dtype(value.dtype()), "state is ", name_of(state->dtype()),
          " for ", name_of(value.dtype()));
  }
  CHECK(settings.step >= 1, "step ", settings.step);
  run_op(stream, cpu::adamw, cuda::adamw, value, master, exp_avg, exp_avg_sq, grad, settings);
}

}  // namespace ferry
