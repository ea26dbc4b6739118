// Stands in for cudnn_attention_cuda.cpp where Ferry is built without cuDNN.

#include "core/check.h"
#include "core/ops/attention_backends_cuda.h"

namespace ferry::cuda {

bool cudnn_attention_supported(Stream&, DType, const AttentionDims&, double) { return false; }

void cudnn_attention_forward(Stream&, const Tensor&, const Tensor&, const Tensor&,
                             const AttentionDims&, double) {
  fail(ExitCode::Internal, "this build has no cuDNN");
}

void cudnn_attention_backward(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              const Tensor&, const AttentionDims&, double, bool) {
  fail(ExitCode::Internal, "this build has no cuDNN");
}

}  // namespace ferry::cuda
