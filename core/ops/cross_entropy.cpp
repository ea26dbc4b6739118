#include "core/ops/cross_entropy.h"

#include "core/ops/cross_entropy_kernels.h"
#include "core/ops/run_op.h"

namespace ferry {
namespace {

void check_logits(const Tensor& logits, const Tensor& labels) {
  CHECK(logits.defined() && logits.shape().rank() == 2, "logits have shape ", logits.shape(),
        ", not [N, V]");
  CHECK_SHAPE(labels, {logits.dim(0)});
}

void check_losses(const Tensor& token_loss, const Tensor& loss_sum, const Tensor& logits,
                  const Tensor& labels, const Tensor& mask) {
  const int64_t num_tokens = logits.dim(0);
  CHECK_SHAPE(token_loss, {num_tokens});
  CHECK_SHAPE(loss_sum, {1});
  CHECK_SHAPE(mask, {num_tokens});
  CHECK(labels.dtype() == DType::I32 && mask.dtype() == DType::F32, "labels are ",
        name_of(labels.dtype()), ", mask is ", name_of(mask.dtype()));
  const DType loss_dtype = accumulate_dtype(logits.dtype());
  CHECK(token_loss.dtype() == loss_dtype && loss_sum.dtype() == loss_dtype, "losses of ",
        name_of(logits.dtype()), " logits are ", name_of(token_loss.dtype()), " and ",
        name_of(loss_sum.dtype()));
}

void check_part(const Tensor& statistics, const Tensor& logits, const Tensor& labels,
                int64_t first_column, int64_t num_columns) {
  CHECK(statistics.dtype() == accumulate_dtype(logits.dtype()), "statistics of ",
        name_of(logits.dtype()), " logits are ", name_of(statistics.dtype()));
  CHECK(labels.dtype() == DType::I32, "labels are ", name_of(labels.dtype()));
  CHECK(first_column >= 0 && num_columns >= 0 && num_columns <= logits.dim(1), num_columns, " of ",
        logits.dim(1), " columns count, from ", first_column);
}

}  // namespace

void cross_entropy(Stream& stream, const Tensor& token_loss, const Tensor& loss_sum,
                   const Tensor& logits, const Tensor& labels, const Tensor& mask,
                   bool with_gradient) {
  check_logits(logits, labels);
  check_losses(token_loss, loss_sum, logits, labels, mask);
  run_op(stream, cpu::cross_entropy, cuda::cross_entropy, token_loss, loss_sum, logits, labels,
         mask, with_gradient);
}

void cross_entropy_part(Stream& stream, const Tensor& statistics, const Tensor& logits,
                        const Tensor& labels, int64_t first_column, int64_t num_columns) {
  check_logits(logits, labels);
  CHECK_SHAPE(statistics, {logits.dim(0), 3});
  check_part(statistics, logits, labels, first_column, num_columns);
  run_op(stream, cpu::cross_entropy_part, cuda::cross_entropy_part, statistics, logits, labels,
         first_column, num_columns);
}

void cross_entropy_join(Stream& stream, const Tensor& token_loss, const Tensor& loss_sum,
                        const Tensor& logits, const Tensor& statistics, const Tensor& labels,
                        const Tensor& mask, int64_t first_column, int64_t num_columns,
                        bool with_gradient) {
  check_logits(logits, labels);
  check_losses(token_loss, loss_sum, logits, labels, mask);
  CHECK(statistics.defined() && statistics.shape().rank() == 3 && statistics.dim(0) > 0,
        "statistics have shape ", statistics.shape(), ", not [parts, N, 3]");
  CHECK_SHAPE(statistics, {statistics.dim(0), logits.dim(0), 3});
  check_part(statistics, logits, labels, first_column, num_columns);
  run_op(stream, cpu::cross_entropy_join, cuda::cross_entropy_join, token_loss, loss_sum, logits,
         statistics, labels, mask, first_column, num_columns, with_gradient);
}

}  // namespace ferry
