#include "core/ops/map_cuda.cuh"
#include "core/ops/split_gemm_kernels.h"

namespace ferry::cuda {
namespace {

// Elements are those of [R, C], of which N neighbours are in one row.
struct SplitRows {
  __nv_bfloat16* parts;
  const float* wide;
  int64_t columns;
  SplitOrder order;

  template <int N>
  __device__ void apply(int64_t i) const {
    float rest[N], part[kSplitParts][N];
    load<N>(wide + i, rest);
#pragma unroll
    for (int p = 0; p < kSplitParts; ++p) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        part[p][j] = to_float(from_float<__nv_bfloat16>(rest[j]));
        rest[j] -= part[p][j];
      }
    }
    const int64_t row = i / columns;
    __nv_bfloat16* to = parts + row * (kSplitParts - 1) * columns + i;
#pragma unroll
    for (int place = 0; place < kSplitParts; ++place) {
      // Not part[order.part[place]], whose index would move the array to memory.
      const int p = order.part[place];
      if (p == 0) store<N>(to + place * columns, part[0]);
      if (p == 1) store<N>(to + place * columns, part[1]);
      if (p == 2) store<N>(to + place * columns, part[2]);
    }
  }
};

struct SumPlaces {
  float* y;
  const float* parts;
  int64_t columns;

  template <int N>
  __device__ void apply(int64_t i) const {
    const float* from = parts + i / columns * (kSplitParts - 1) * columns + i;
    float x[kSplitParts][N];
#pragma unroll
    for (int p = 0; p < kSplitParts; ++p) load<N>(from + p * columns, x[p]);
#pragma unroll
    for (int j = 0; j < N; ++j) x[0][j] = (x[2][j] + x[1][j]) + x[0][j];
    store<N>(y + i, x[0]);
  }
};

constexpr int kWidth = kVector<__nv_bfloat16>;

}  // namespace

void split_rows(Stream& stream, const Tensor& parts, const Tensor& wide, SplitOrder order) {
  auto* to = device_data<__nv_bfloat16>(parts);
  const float* from = device_data<float>(wide);
  launch_map<kWidth>(stream, wide.numel(), wide.dim(1) % kWidth == 0 && aligned16(to, from),
                     SplitRows{to, from, wide.dim(1), order});
}

void sum_places(Stream& stream, const Tensor& y, const Tensor& parts) {
  float* to = device_data<float>(y);
  const float* from = device_data<float>(parts);
  launch_map<kVector<float>>(stream, y.numel(),
                             y.dim(1) % kVector<float> == 0 && aligned16(to, from),
                             SumPlaces{to, from, y.dim(1)});
}

}  // namespace ferry::cuda
