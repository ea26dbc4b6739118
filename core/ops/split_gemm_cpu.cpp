#include "core/ops/split_gemm_kernels.h"

namespace ferry::cpu {

void split_rows(const Tensor& parts, const Tensor& wide, SplitOrder order) {
  const int64_t rows = wide.dim(0), columns = wide.dim(1);
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = wide.data<float>() + r * columns;
    BFloat16* to = parts.data<BFloat16>() + r * kSplitParts * columns;
    for (int64_t c = 0; c < columns; ++c) {
      BFloat16 part[kSplitParts];
      float rest = from[c];
      for (BFloat16& nearest : part) {
        nearest = BFloat16(rest);
        rest -= float(nearest);
      }
      for (int place = 0; place < kSplitParts; ++place)
        to[place * columns + c] = part[order.part[place]];
    }
  }
}

void sum_places(const Tensor& y, const Tensor& parts) {
  const int64_t rows = y.dim(0), columns = y.dim(1);
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = parts.data<float>() + r * kSplitParts * columns;
    float* to = y.data<float>() + r * columns;
    for (int64_t c = 0; c < columns; ++c)
      to[c] = (from[2 * columns + c] + from[columns + c]) + from[c];
  }
}

}  // namespace ferry::cpu
