#include <algorithm>
#include <limits>

#include "core/check_cuda.h"
#include "core/ops/grouped_gemm_kernels.h"
#include "core/ops/grouped_gemm_mma.cuh"
#include "core/ops/grouped_gemm_simt.cuh"
#include "core/ops/grouped_gemm_wgmma.h"
#include "core/ops/vector_cuda.cuh"
#include "core/stream_cuda.h"

namespace ferry::cuda {
namespace {

int to_int(int64_t value) {
  CHECK(value <= std::numeric_limits<int>::max(), "a grouped product with a dim of ", value);
  return static_cast<int>(value);
}

// At most so many tiles of all groups together.
template <GroupedKind kKind>
int64_t most_tiles(const GroupedProduct& p, int tile_m, int tile_n) {
  const int64_t tiles_n = ceil_div(p.columns, tile_n);
  if (kKind == GroupedKind::Wgrad) return p.groups * ceil_div(p.rows, tile_m) * tiles_n;
  return (p.rows / tile_m + p.groups) * tiles_n;
}

template <GroupedKind kKind>
void run_mma(Stream& stream, const GroupedProduct& p) {
  const int shared = mma::shared_bytes(p.groups);
  CUDA_CHECK(cudaFuncSetAttribute(mma::kernel<kKind>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  shared));
  const int64_t tiles = most_tiles<kKind>(p, mma::kTileM, mma::kTileN);
  const auto blocks = std::min<int64_t>(num_multiprocessors(stream), tiles);
  mma::kernel<kKind><<<grid_size(blocks), mma::kThreads, shared, cuda_handle(stream)>>>(p);
  CUDA_CHECK(cudaGetLastError());
}

template <GroupedKind kKind, class T, class C>
void run_simt(Stream& stream, const GroupedProduct& p) {
  const int shared = GroupTiles<kKind, simt::kTile, simt::kTile>::shared_ints(p.groups) * 4;
  const int64_t tiles = most_tiles<kKind>(p, simt::kTile, simt::kTile);
  const auto blocks = std::min<int64_t>(num_multiprocessors(stream) * int64_t{4}, tiles);
  simt::kernel<kKind, T, C><<<grid_size(blocks), simt::kThreads, shared, cuda_handle(stream)>>>(p);
  CUDA_CHECK(cudaGetLastError());
}

template <GroupedKind kKind>
void run(Stream& stream, DType dtype, const GroupedProduct& p) {
  constexpr bool kWgrad = kKind == GroupedKind::Wgrad;
  // Both kernels keep the offsets in shared memory.
  CHECK(p.groups <= 4096, "a grouped product of ", p.groups, " groups");
  if (dtype == DType::F32) return run_simt<kKind, float, float>(stream, p);
  CHECK(dtype == DType::BF16, "a grouped product of ", name_of(dtype), " on a GPU");
  // Tensor cores are fed by copies of 16 bytes along the contiguous dims.
  const bool whole_chunks =
      p.columns % 8 == 0 && (kWgrad ? p.rows : p.depth) % 8 == 0 && aligned16(p.a, p.b, p.c);
  if (whole_chunks) return run_mma<kKind>(stream, p);
  run_simt<kKind, __nv_bfloat16, std::conditional_t<kWgrad, float, __nv_bfloat16>>(stream, p);
}

GroupedProduct product(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offsets) {
  GroupedProduct p;
  p.offsets = offsets.data<int32_t>();
  p.groups = to_int(offsets.dim(0) - 1);
  p.a = a.raw();
  p.b = b.raw();
  p.c = c.raw();
  return p;
}

// Forward and dgrad: c [rows, columns] of a [rows, depth].
GroupedProduct rows_product(const Tensor& c, const Tensor& a, const Tensor& weight,
                            const Tensor& offsets) {
  GroupedProduct p = product(c, a, weight, offsets);
  p.rows = to_int(c.dim(0));
  p.columns = to_int(c.dim(1));
  p.depth = to_int(a.dim(1));
  return p;
}

}  // namespace

void grouped_gemm_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& weight,
                          const Tensor& offsets) {
  if (y.numel() == 0) return;
  if (weight.numel() == 0) return stream.zero(y);
  if (wgmma_takes(x, weight, offsets.dim(0) - 1))
    return wgmma_forward(stream, y, x, weight, offsets);
  run<GroupedKind::Forward>(stream, x.dtype(), rows_product(y, x, weight, offsets));
}

void grouped_gemm_dgrad(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& weight,
                        const Tensor& offsets) {
  if (dx.numel() == 0) return;
  if (weight.numel() == 0) return stream.zero(dx);
  if (wgmma_takes(dy, weight, offsets.dim(0) - 1))
    return wgmma_dgrad(stream, dx, dy, weight, offsets);
  run<GroupedKind::Dgrad>(stream, dy.dtype(), rows_product(dx, dy, weight, offsets));
}

void grouped_gemm_wgrad(Stream& stream, const Tensor& dweight, const Tensor& dy, const Tensor& x,
                        const Tensor& offsets) {
  if (dweight.numel() == 0 || x.dim(0) == 0) return;
  if (wgmma_takes(x, dweight, offsets.dim(0) - 1))
    return wgmma_wgrad(stream, dweight, dy, x, offsets);
  GroupedProduct p = product(dweight, dy, x, offsets);
  p.rows = to_int(dweight.dim(1));
  p.columns = to_int(dweight.dim(2));
  run<GroupedKind::Wgrad>(stream, x.dtype(), p);
}

}  // namespace ferry::cuda
