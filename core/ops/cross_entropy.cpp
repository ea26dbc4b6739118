#include "core/ops/cross_entropy.h"

#include "core/ops/cross_entropy_kernels.h"
#include "core/ops/run_op.h"

namespace ferry {

void cross_entropy(Stream& stream, const Tensor& token_loss, const Tensor& loss_sum,
                   const Tensor& logits, const Tensor& labels, const Tensor& mask,
                   bool with_gradient) {
  CHECK(logits.defined() && logits.shape().rank() == 2, "logits have shape ", logits.shape(),
        ", not [N, V]");
  const int64_t num_tokens = logits.dim(0);
  CHECK_SHAPE(token_loss, {num_tokens});
  CHECK_SHAPE(loss_sum, {1});
  CHECK_SHAPE(labels, {num_tokens});
  CHECK_SHAPE(mask, {num_tokens});
  CHECK(labels.dtype() == DType::I32 && mask.dtype() == DType::F32, "labels are ",
        name_of(labels.dtype()), ", mask is ", name_of(mask.dtype()));
  const DType loss_dtype = accumulate_dtype(logits.dtype());
  CHECK(token_loss.dtype() == loss_dtype && loss_sum.dtype() == loss_dtype, "losses of ",
        name_of(logits.dtype()), " logits are ", name_of(token_loss.dtype()), " and ",
        name_of(loss_sum.dtype()));
  run_op(stream, cpu::cross_entropy, cuda::cross_entropy, token_loss, loss_sum, logits, labels,
         mask, with_gradient);
}

}  // namespace ferry
