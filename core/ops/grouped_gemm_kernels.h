#pragma once

// The two backends of grouped_gemm.h. Arguments are checked by grouped_gemm.cpp; cpu:: runs on the
// stream's thread.

#include "core/ops/grouped_gemm.h"

namespace ferry::cpu {
void grouped_gemm_forward(const Tensor& y, const Tensor& x, const Tensor& weight,
                          const Tensor& offsets);
void grouped_gemm_dgrad(const Tensor& dx, const Tensor& dy, const Tensor& weight,
                        const Tensor& offsets);
void grouped_gemm_wgrad(const Tensor& dweight, const Tensor& dy, const Tensor& x,
                        const Tensor& offsets);
}  // namespace ferry::cpu

namespace ferry::cuda {
void grouped_gemm_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& weight,
                          const Tensor& offsets);
void grouped_gemm_dgrad(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& weight,
                        const Tensor& offsets);
void grouped_gemm_wgrad(Stream& stream, const Tensor& dweight, const Tensor& dy, const Tensor& x,
                        const Tensor& offsets);

// Fused with SwiGLU, of gathered rows, too; false: there is no such kernel for these, and nothing
// was done.
bool grouped_gemm_swiglu_forward(Stream& stream, const Tensor& gate_up, const Tensor& h,
                                 const Rows& x, const Tensor& weight, const Tensor& prob,
                                 const Tensor& offsets);
bool grouped_gemm_swiglu_backward(Stream& stream, const Tensor& dgate_up, const Tensor& dprob,
                                  const Tensor& dy, const Tensor& weight, const Tensor& gate_up,
                                  const Tensor& prob, const Tensor& offsets);
}  // namespace ferry::cuda
