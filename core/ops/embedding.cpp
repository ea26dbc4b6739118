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

// With `vocab` given, whether the table is a part or the whole.
VocabularyRows checked(VocabularyRows rows, const Tensor& table) {
  CHECK(rows.first_row >= 0 && rows.vocab >= 0 && (rows.vocab > 0 || rows.first_row == 0),
        "rows from ", rows.first_row, " of a vocabulary of ", rows.vocab);
  if (rows.vocab == 0) rows.vocab = table.dim(0);
  return rows;
}

}  // namespace

void embedding_forward(Stream& stream, const Tensor& y, const Tensor& weight, const Tensor& tokens,
                       VocabularyRows rows) {
  check_table(y, weight, tokens);
  CHECK(y.dtype() == weight.dtype(), "y is ", name_of(y.dtype()), ", weight is ",
        name_of(weight.dtype()));
  run_op(stream, cpu::embedding_forward, cuda::embedding_forward, y, weight, tokens,
         checked(rows, weight));
}

void embedding_backward(Stream& stream, const Tensor& dweight, const Tensor& dy,
                        const Tensor& tokens, VocabularyRows rows) {
  check_table(dy, dweight, tokens);
  CHECK(dweight.dtype() == accumulate_dtype(dy.dtype()), "dweight is ", name_of(dweight.dtype()),
        ", dy is ", name_of(dy.dtype()));
  run_op(stream, cpu::embedding_backward, cuda::embedding_backward, dweight, dy, tokens,
         checked(rows, dweight));
}

}  // namespace ferry
