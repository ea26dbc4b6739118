#include "core/ops/swiglu.h"

#include "core/ops/run_op.h"
#include "core/ops/swiglu_kernels.h"

namespace ferry {

void check_swiglu(const Tensor& h, const Tensor& gate_up, const Tensor& prob) {
  CHECK(gate_up.shape().rank() == 2 && gate_up.dim(1) % 2 == 0, "gate_up has shape ",
        gate_up.shape());
  CHECK_SHAPE(h, {gate_up.dim(0), gate_up.dim(1) / 2});
  CHECK(h.dtype() == gate_up.dtype(), "h is ", name_of(h.dtype()));
  if (prob.defined()) {
    CHECK_SHAPE(prob, {gate_up.dim(0)});
    CHECK(prob.dtype() == accumulate_dtype(h.dtype()), "prob is ", name_of(prob.dtype()));
  }
}

void swiglu_forward(Stream& stream, const Tensor& h, const Tensor& gate_up, const Tensor& prob) {
  check_swiglu(h, gate_up, prob);
  run_op(stream, cpu::swiglu_forward, cuda::swiglu_forward, h, gate_up, prob);
}

void swiglu_backward(Stream& stream, const Tensor& dgate_up, const Tensor& dprob, const Tensor& dh,
                     const Tensor& gate_up, const Tensor& prob) {
  check_swiglu(dh, gate_up, prob);
  CHECK_SHAPE(dgate_up, {gate_up.dim(0), gate_up.dim(1)});
  CHECK(dgate_up.dtype() == gate_up.dtype(), "dgate_up is ", name_of(dgate_up.dtype()));
  if (dprob.defined()) {
    CHECK_SHAPE(dprob, {gate_up.dim(0)});
    CHECK(dprob.dtype() == accumulate_dtype(dh.dtype()), "dprob is ", name_of(dprob.dtype()));
  }
  run_op(stream, cpu::swiglu_backward, cuda::swiglu_backward, dgate_up, dprob, dh, gate_up, prob);
}

}  // namespace ferry
