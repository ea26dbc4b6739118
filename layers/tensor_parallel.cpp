#include "layers/tensor_parallel.h"

#include <algorithm>

namespace ferry {
namespace {

Shape with_rows(const Shape& shape, int64_t rows) {
  std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
  dims[0] = rows;
  return Shape(std::span<const int64_t>(dims));
}

}  // namespace

Tensor TensorParallel::enter(Stream& stream, const Tensor& x) const {
  if (size == 1 || !sequence) return x;
  const Tensor all =
      Tensor::empty(stream, "sequence gather", with_rows(x.shape(), x.dim(0) * size), x.dtype());
  group->all_gather(stream, all, x);
  return all;
}

Tensor TensorParallel::leave(Stream& stream, const Tensor& partial) const {
  if (size == 1) return partial;
  if (!sequence) {
    group->all_reduce(stream, partial, ReduceOp::Sum);
    return partial;
  }
  const Tensor own =
      Tensor::empty(stream, "sequence scatter",
                    with_rows(partial.shape(), num_rows(partial.dim(0))), partial.dtype());
  group->reduce_scatter(stream, own, partial);
  return own;
}

int64_t TensorParallel::num_rows(int64_t num_tokens) const {
  if (!sequence) return num_tokens;
  CHECK(num_tokens % size == 0, size, " tensor-parallel ranks do not divide ", num_tokens,
        " tokens");
  return num_tokens / size;
}

Tensor TensorParallel::own_rows(const Tensor& x) const {
  const int64_t rows = num_rows(x.dim(0)), first = first_row(rows);
  return x.rows(first, first + rows);
}

void TensorParallel::replicate(Parameter& parameter) const {
  if (size == 1) return;
  if (sequence)
    parameter.axis = ReduceAxis::Stage;
  else
    parameter.is_copy = rank != 0;
}

void TensorParallel::replicate_inside(Parameter& parameter) const {
  if (size > 1) parameter.axis = ReduceAxis::Stage;
}

VocabularyPart vocabulary_part(int64_t vocab, int rank, int size) {
  VocabularyPart part;
  part.rows = (vocab + size - 1) / size;
  part.first = rank * part.rows;
  part.real_rows = std::clamp<int64_t>(vocab - part.first, 0, part.rows);
  return part;
}

void cut_vocabulary(Parameter& weight, int rank, int size) {
  if (size == 1) return;
  const VocabularyPart part = vocabulary_part(weight.shape[0], rank, size);
  const int64_t begin = std::min(part.first, weight.shape[0]);
  weight.part = weight.placement().rows(begin, begin + part.real_rows).padded(part.rows);
  weight.shape = with_rows(weight.shape, part.rows);
}

}  // namespace ferry
