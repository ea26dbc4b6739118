#include "core/ops/grouped_gemm_wgmma.h"

#include <cudaTypedefs.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <span>
#include <string_view>

#include "core/check_cuda.h"
#include "core/ops/grouped_gemm_kernels.h"
#include "core/ops/grouped_gemm_wgmma.cuh"
#include "core/ops/vector_cuda.cuh"
#include "core/stream_cuda.h"

namespace ferry::cuda {
namespace {

using wgmma::kRowsEnd;

// The driver's function, without linking the driver: programs start on machines that have none.
PFN_cuTensorMapEncodeTiled_v12000 encode_tensor_map() {
  static const auto function = [] {
    void* pointer = nullptr;
    cudaDriverEntryPointQueryResult result{};
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &pointer, 12000,
                                                cudaEnableDefault, &result));
    CHECK(result == cudaDriverEntryPointSuccess, "the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(pointer);
  }();
  return function;
}

// dims, from the contiguous one, in elements; strides of the others in bytes; box in elements, 128
// bytes wide.
CUtensorMap tensor_map(const void* data, CUtensorMapDataType type, std::span<const uint64_t> dims,
                       std::span<const uint64_t> strides, std::span<const uint32_t> box) {
  constexpr std::array<uint32_t, 5> kUnit{1, 1, 1, 1, 1};
  CUtensorMap map;
  CUDA_DRIVER_CHECK(
      encode_tensor_map()(&map, type, static_cast<uint32_t>(dims.size()), const_cast<void*>(data),
                          dims.data(), strides.data(), box.data(), kUnit.data(),
                          CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return map;
}

constexpr auto kBf16 = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
constexpr uint64_t kRows = kRowsEnd;
constexpr uint64_t kAny = 0x7fff0000;
// Times kRows this is 2^65, which is 0 in an address of 64 bits.
constexpr uint64_t kWrap = uint64_t{1} << 35;

// Rows of 2-D memory that end where the coordinates say: row r of a group of n rows that ends
// before row `end` of the memory has coordinates (column, kRowsEnd - n + r, end, kRowsEnd). From r
// = n on the second is outside of the tensor, so loads bring zeros and stores are dropped; the
// strides of the last two take the address to row end - n + r, since kRowsEnd * (2^35 - pitch) is
// -kRowsEnd * pitch.
CUtensorMap row_map(const Tensor& rows, uint32_t box_rows) {
  const auto columns = static_cast<uint64_t>(rows.dim(1));
  const uint64_t pitch = columns * 2;
  return tensor_map(rows.raw(), kBf16, std::array{columns, kRows, kAny, kAny},
                    std::array{pitch, pitch, kWrap - pitch},
                    std::array<uint32_t, 4>{64, box_rows, 1, 1});
}

// The same in slabs of 64 columns, for sums over rows: (column of the slab, row as above, slab,
// ...).
CUtensorMap slab_row_map(const Tensor& rows, uint32_t box_slabs) {
  const auto columns = static_cast<uint64_t>(rows.dim(1));
  const uint64_t pitch = columns * 2;
  return tensor_map(rows.raw(), kBf16, std::array<uint64_t, 5>{64, kRows, columns / 64, kAny, kAny},
                    std::array<uint64_t, 4>{pitch, 128, pitch, kWrap - pitch},
                    std::array<uint32_t, 5>{64, 64, box_slabs, 1, 1});
}

// weight [E, N, K] as the right operand of the forward product: 128 rows of 64 columns.
CUtensorMap weight_map(const Tensor& weight) {
  const auto k = static_cast<uint64_t>(weight.dim(2)), n = static_cast<uint64_t>(weight.dim(1));
  return tensor_map(weight.raw(), kBf16,
                    std::array<uint64_t, 3>{k, n, static_cast<uint64_t>(weight.dim(0))},
                    std::array<uint64_t, 2>{k * 2, n * k * 2}, std::array<uint32_t, 3>{64, 128, 1});
}

// As the right operand of dgrad: 64 rows of two slabs of 64 columns.
CUtensorMap slab_weight_map(const Tensor& weight) {
  const auto k = static_cast<uint64_t>(weight.dim(2)), n = static_cast<uint64_t>(weight.dim(1));
  return tensor_map(weight.raw(), kBf16,
                    std::array<uint64_t, 4>{64, n, k / 64, static_cast<uint64_t>(weight.dim(0))},
                    std::array<uint64_t, 3>{k * 2, 128, n * k * 2},
                    std::array<uint32_t, 4>{64, 64, 2, 1});
}

// dweight [E, N, K] FP32: 16 rows of 32 columns.
CUtensorMap gradient_map(const Tensor& dweight) {
  const auto k = static_cast<uint64_t>(dweight.dim(2)), n = static_cast<uint64_t>(dweight.dim(1));
  return tensor_map(dweight.raw(), CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                    std::array<uint64_t, 3>{k, n, static_cast<uint64_t>(dweight.dim(0))},
                    std::array<uint64_t, 2>{k * 4, n * k * 4}, std::array<uint32_t, 3>{32, 16, 1});
}

template <class W>
void launch(Stream& stream, const wgmma::Maps& maps, wgmma::Product p, const Tensor& offsets) {
  p.offsets = offsets.data<int32_t>();
  p.groups = static_cast<int>(offsets.dim(0) - 1);
  p.counter = as_cuda(stream).zeroed_counters().data<int32_t>();
  p.depth_blocks = std::max(p.depth_blocks, W::kFewestBlocks);
  const int shared = wgmma::Shared::bytes(p.groups);
  CUDA_CHECK(
      cudaFuncSetAttribute(wgmma::kernel<W>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  const int blocks = num_multiprocessors(stream) / 2 * 2;
  wgmma::kernel<W><<<blocks, wgmma::kThreads, shared, cuda_handle(stream)>>>(maps, p);
  CUDA_CHECK(cudaGetLastError());
}

// Whether gathered rows can be addressed; those in their order always can.
bool reaches_rows(const Rows& rows) {
  return !rows.gathered() || (rows.x.bytes() <= std::numeric_limits<uint32_t>::max() &&
                              rows.num_rows() < kRowsEnd && aligned16(rows.x.raw()));
}

wgmma::GatherSource gather_source(const Rows& rows) {
  wgmma::GatherSource source;
  source.tokens = static_cast<const uint8_t*>(rows.x.raw());
  source.slot_of_row = rows.slot_of_row.data<int32_t>();
  source.set_choices(static_cast<uint32_t>(rows.num_rows() / rows.x.dim(0)));
  source.token_bytes = static_cast<uint32_t>(rows.x.dim(1) * 2);
  return source;
}

int tiles(int64_t size, int tile) { return grouped::tiles_of(static_cast<int>(size), tile); }

wgmma::Product rows_product(int64_t columns, int64_t depth) {
  wgmma::Product p;
  p.tiles_n = tiles(columns, grouped::kTileColumns);
  p.depth_blocks = tiles(depth, grouped::kTileDepth);
  return p;
}

wgmma::Product wgrad_product(const Tensor& dweight, int64_t num_rows) {
  wgmma::Product p;
  p.from_both_ends =
      grouped::takes_from_both_ends(num_rows / dweight.dim(0), dweight.dim(1) + dweight.dim(2));
  p.tiles_m = tiles(dweight.dim(1), grouped::kTileRows);
  p.tiles_n = tiles(dweight.dim(2), grouped::kTileColumns);
  return p;
}

// dprob[r] = the sum of parts [n, R] in their order.
__global__ void add_parts(float* dprob, const float* parts, int n, int rows, const int* end) {
  const int r = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (r >= *end) return;
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += parts[int64_t{i} * rows + r];
  dprob[r] = sum;
}

// All tiles have enough blocks of depth to store their predecessors behind, and none has columns of
// two halves.
template <class W>
bool fits_swiglu(int64_t ffn, int64_t depth) {
  return ffn % 128 == 0 && tiles(depth, grouped::kTileDepth) >= W::kFewestBlocks;
}

bool hopper_kernels_allowed() {
  const char* value = std::getenv("FERRY_HOPPER_KERNELS");
  const std::string_view text = value != nullptr ? value : "on";
  if (text != "on" && text != "off")
    fail(ExitCode::Usage, "error: FERRY_HOPPER_KERNELS is '", text, "', not on or off");
  return text == "on";
}

}  // namespace

bool wgmma_takes(const Tensor& rows, const Tensor& weight, int64_t groups) {
  static const bool allowed = hopper_kernels_allowed();
  if (!allowed) return false;
  // Slabs of 64 columns, and 32-bit coordinates in which row numbers and 2^30 must fit.
  return rows.dtype() == DType::BF16 && weight.dim(1) % 64 == 0 && weight.dim(2) % 64 == 0 &&
         rows.dim(0) < kRowsEnd && groups <= kMostWgmmaGroups;
}

void wgmma_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& weight,
                   const Tensor& offsets) {
  const wgmma::Maps maps{row_map(x, 64), weight_map(weight), row_map(y, 16), {}};
  launch<wgmma::Work<GroupedKind::Forward, wgmma::StoreRows>>(
      stream, maps, rows_product(y.dim(1), x.dim(1)), offsets);
}

void wgmma_dgrad(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& weight,
                 const Tensor& offsets) {
  const wgmma::Maps maps{row_map(dy, 64), slab_weight_map(weight), row_map(dx, 16), {}};
  launch<wgmma::Work<GroupedKind::Dgrad, wgmma::StoreRows>>(
      stream, maps, rows_product(dx.dim(1), dy.dim(1)), offsets);
}

void wgmma_wgrad(Stream& stream, const Tensor& dweight, const Tensor& dy, const Tensor& x,
                 const Tensor& offsets) {
  const wgmma::Maps maps{slab_row_map(dy, 2), slab_row_map(x, 2), gradient_map(dweight), {}};
  launch<wgmma::Work<GroupedKind::Wgrad, wgmma::AddMatrices>>(
      stream, maps, wgrad_product(dweight, x.dim(0)), offsets);
}

bool grouped_gemm_swiglu_forward(Stream& stream, const Tensor& gate_up, const Tensor& h,
                                 const Rows& x, const Tensor& weight, const Tensor& prob,
                                 const Tensor& offsets) {
  using W = wgmma::Work<GroupedKind::Forward, wgmma::StoreSwiglu>;
  using Gathered = wgmma::Work<GroupedKind::Forward, wgmma::StoreSwiglu, true>;
  const int64_t ffn = h.dim(1), depth = x.x.dim(1);
  if (!wgmma_takes(x.x, weight, offsets.dim(0) - 1) || !fits_swiglu<W>(ffn, depth) ||
      !reaches_rows(x))
    return false;
  wgmma::Maps maps{{}, weight_map(weight), row_map(gate_up, 16), row_map(h, 16)};
  wgmma::Product p = rows_product(2 * ffn, depth);
  p.ffn = static_cast<int>(ffn);
  p.prob = device_data<float>(prob);
  if (x.gathered()) {
    p.gather = gather_source(x);
    launch<Gathered>(stream, maps, p, offsets);
  } else {
    maps.a = row_map(x.x, 64);
    launch<W>(stream, maps, p, offsets);
  }
  return true;
}

bool grouped_gemm_swiglu_backward(Stream& stream, const Tensor& dgate_up, const Tensor& dprob,
                                  const Tensor& dy, const Tensor& weight, const Tensor& gate_up,
                                  const Tensor& prob, const Tensor& offsets) {
  using W = wgmma::Work<GroupedKind::Dgrad, wgmma::StoreSwigluGradients>;
  const int64_t rows = dy.dim(0), ffn = weight.dim(2), depth = dy.dim(1);
  if (!wgmma_takes(dy, weight, offsets.dim(0) - 1) || !fits_swiglu<W>(ffn, depth)) return false;
  const wgmma::Maps maps{row_map(dy, 64), slab_weight_map(weight), row_map(dgate_up, 16),
                         row_map(gate_up, 16)};
  wgmma::Product p = rows_product(ffn, depth);
  p.ffn = static_cast<int>(ffn);
  p.prob = device_data<float>(prob);
  p.num_rows = static_cast<int>(rows);
  Tensor parts;
  if (dprob.defined()) {
    parts = Tensor::empty(stream, "gradients", {p.tiles_n, rows}, DType::F32);
    p.dprob = parts.data<float>();
  }
  launch<W>(stream, maps, p, offsets);
  if (!dprob.defined()) return true;
  const int* end = offsets.data<int32_t>() + offsets.dim(0) - 1;
  add_parts<<<grid_size(ceil_div(rows, 256)), 256, 0, cuda_handle(stream)>>>(
      device_data<float>(dprob), p.dprob, p.tiles_n, p.num_rows, end);
  CUDA_CHECK(cudaGetLastError());
  return true;
}

}  // namespace ferry::cuda
