#include <cstring>

#include "core/ops/embedding_kernels.h"

namespace ferry::cpu {
namespace {

// The row of the part's table that has token t; -1 if another part has it.
int64_t row_of(const Tensor& tokens, int64_t t, const Tensor& table, const VocabularyRows& rows) {
  const int64_t token = tokens.data<int32_t>()[t];
  CHECK(token >= 0 && token < rows.vocab, "token ", t, " is ", token,
        ", outside of a vocabulary of ", rows.vocab);
  const int64_t row = token - rows.first_row;
  return row >= 0 && row < table.dim(0) ? row : -1;
}

}  // namespace

void embedding_forward(const Tensor& y, const Tensor& weight, const Tensor& tokens,
                       const VocabularyRows& rows) {
  const auto row_bytes = static_cast<size_t>(y.dim(1)) * size_of(y.dtype());
  const auto* table = static_cast<const std::byte*>(weight.raw());
  auto* out = static_cast<std::byte*>(y.raw());
  for (int64_t t = 0; t < tokens.dim(0); ++t) {
    const int64_t row = row_of(tokens, t, weight, rows);
    std::byte* to = out + static_cast<size_t>(t) * row_bytes;
    if (row < 0)
      std::memset(to, 0, row_bytes);
    else
      std::memcpy(to, table + static_cast<size_t>(row) * row_bytes, row_bytes);
  }
}

void embedding_backward(const Tensor& dweight, const Tensor& dy, const Tensor& tokens,
                        const VocabularyRows& rows) {
  dispatch_float(dy.dtype(), [&]<class T>() {
    const int64_t width = dy.dim(1);
    for (int64_t t = 0; t < tokens.dim(0); ++t) {
      const int64_t row = row_of(tokens, t, dweight, rows);
      if (row < 0) continue;
      const T* __restrict from = dy.data<T>() + t * width;
      compute_t<T>* __restrict to = dweight.data<compute_t<T>>() + row * width;
      for (int64_t i = 0; i < width; ++i) to[i] += static_cast<compute_t<T>>(from[i]);
    }
  });
}

}  // namespace ferry::cpu
