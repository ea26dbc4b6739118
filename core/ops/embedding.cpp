#include "core/ops/embedding.h"

#include "core/ops/embedding_kernels.h"
#include "core/ops/run_op.h"

namespace ferry {
namespace {

void check_table(const Tensor& rows, const Tensor& table, const Tensor& tokens) {
  CHECK(table.defined() && table.shape().rank() == 2, "the table has shape ", table.shape(),
        ", not [V, D]");
  CHECK(tokens.defined() && tokens.shape().rank() == 1 && tokens.dtype() == DType::I32,
        "tokens are ", name_of(tokens.dtype()), " ", tokens.shape(), ", not i32 [T]");
  CHECK_SHAPE(rows, {tokens.dim(0), table.dim(1)});
}

}  // namespace

void embedding_forward(Stream& stream, const Tensor& y, const Tensor& weight,
                       const Tensor& tokens) {
  check_table(y, weight, tokens);
  CHECK(y.dtype() == weight.dtype(), "y is ", name_of(y.dtype()), ", weight is ",
        name_of(weight.dtype()));
  run_op(stream, cpu::embedding_forward, cuda::embedding_forward, y, weight, tokens);
}

void embedding_backward(Stream& stream, const Tensor& dweight, const Tensor& dy,
                        const Tensor& tokens) {
  check_table(dy, dweight, tokens);
  CHECK(dweight.dtype() == accumulate_dtype(dy.dtype()), "dweight is ", name_of(dweight.dtype()),
        ", dy is ", name_of(dy.dtype()));
  run_op(stream, cpu::embedding_backward, cuda::embedding_backward, dweight, dy, tokens);
}

}  // namespace ferry
