#include "core/ops/sgd.h"

#include "core/ops/run_op.h"
#include "core/ops/sgd_kernels.h"
#include "core/ops/update_state.h"

namespace ferry {

void sgd(Stream& stream, const Tensor& value, const Tensor& master, const Tensor& buffer,
         const Tensor& grad, const SgdSettings& settings) {
  check_update_state(value, {&master, &grad}, {&buffer});
  run_op(stream, cpu::sgd, cuda::sgd, value, master, buffer, grad, settings);
}

void sgd_on_host(const Tensor& value, const Tensor& master, const Tensor& buffer,
                 const Tensor& grad, const SgdSettings& settings) {
  check_update_state(value, {&master, &grad}, {&buffer});
  check_on_host({&value, &master, &buffer, &grad});
  cpu::sgd(value, master, buffer, grad, settings);
}

}  // namespace ferry
