#include <cstring>

#include "core/ops/embedding_kernels.h"

namespace ferry::cpu {
namespace {

int64_t token_at(const Tensor& tokens, int64_t t, int64_t vocab) {
  const int64_t token = tokens.data<int32_t>()[t];
  CHECK(token >= 0 && token < vocab, "token ", t, " is ", token, ", outside of a vocabulary of ",
        vocab);
  return token;
}

}  // namespace

void embedding_forward(const Tensor& y, const Tensor& weight, const Tensor& tokens) {
  const auto row_bytes = static_cast<size_t>(y.dim(1)) * size_of(y.dtype());
  const auto* table = static_cast<const std::byte*>(weight.raw());
  auto* out = static_cast<std::byte*>(y.raw());
  for (int64_t t = 0; t < tokens.dim(0); ++t) {
    const auto token = static_cast<size_t>(token_at(tokens, t, weight.dim(0)));
    std::memcpy(out + static_cast<size_t>(t) * row_bytes, table + token * row_bytes, row_bytes);
  }
}

void embedding_backward(const Tensor& dweight, const Tensor& dy, const Tensor& tokens) {
  dispatch_float(dy.dtype(), [&]<class T>() {
    const int64_t width = dy.dim(1);
    for (int64_t t = 0; t < tokens.dim(0); ++t) {
      const T* __restrict from = dy.data<T>() + t * width;
      compute_t<T>* __restrict to =
          dweight.data<compute_t<T>>() + token_at(tokens, t, dweight.dim(0)) * width;
      for (int64_t i = 0; i < width; ++i) to[i] += static_cast<compute_t<T>>(from[i]);
    }
  });
}

}  // namespace ferry::cpu
