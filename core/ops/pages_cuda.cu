#include <algorithm>

#include "core/check_cuda.h"
#include "core/ops/map_cuda.cuh"
#include "core/ops/pages_kernels.h"
#include "core/stream_cuda.h"

namespace ferry::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int64_t kMaxBlocks = 2048;

// What the kernels know of a pool and of one tensor in it.
struct PageSpace {
  void* pages;
  void* host_pages;
  int32_t* free_pages;
  int32_t* free_host_pages;
  int64_t* state;
  int64_t num_pages;
  int64_t num_host_pages;
  int64_t page_rows;
  int32_t* list;
  int32_t* home;
  const int32_t* num_rows;
  int64_t max_rows;  // of the tensor

  __device__ int64_t rows_in_use() const {
    return min(max(static_cast<int64_t>(*num_rows), int64_t{0}), max_rows);
  }
  __device__ int64_t pages_in_use() const { return (rows_in_use() + page_rows - 1) / page_rows; }
};

PageSpace space_of(const PagePool& pool, const PageList& list, const Tensor& rows,
                   const Tensor& num_rows) {
  return {pool.pages.raw(),
          pool.host_pages.raw(),
          pool.free_pages.data<int32_t>(),
          pool.free_host_pages.data<int32_t>(),
          pool.state.data<int64_t>(),
          pool.pages.dim(0),
          pool.host_pages.dim(0),
          pool.page_rows(),
          list.pages.data<int32_t>(),
          list.home.data<int32_t>(),
          num_rows.data<int32_t>(),
          rows.dim(0)};
}

struct ResetPages {
  int32_t* free_pages;
  int32_t* free_host_pages;
  int64_t* state;
  int64_t num_pages;
  int64_t num_host_pages;
  template <int N>
  __device__ void apply(int64_t i) const {
    static_assert(N == 1);
    if (i < num_pages) free_pages[i] = static_cast<int32_t>(i);
    if (i < num_host_pages) free_host_pages[i] = static_cast<int32_t>(i);
    if (i < kPoolStateSize)
      state[i] = i == kTail ? num_pages : i == kHostTail ? num_host_pages : int64_t{0};
  }
};

// One block: chooses the home and takes the pages.
__global__ void __launch_bounds__(kThreads) take_kernel(PageSpace space, int32_t* flags) {
  __shared__ PageHome home;
  __shared__ int64_t head;
  const int64_t needed = space.pages_in_use();
  if (threadIdx.x == 0) {
    int64_t* state = space.state;
    home = PageHome::None;
    if (flags[kStashOverflow] == 0) {
      if (state[kTail] - state[kHead] >= needed) {
        home = PageHome::Device;
      } else if (state[kHostTail] - state[kHostHead] >= needed) {
        home = PageHome::Host;
      }
    }
    if (home == PageHome::None) {
      flags[kStashOverflow] = 1;
    } else {
      int64_t& counter = state[home == PageHome::Host ? kHostHead : kHead];
      head = counter;
      counter += needed;
    }
    if (home == PageHome::Host) {
      flags[kStashSpilled] = 1;
      state[kHostRows] += space.rows_in_use();
    }
    *space.home = static_cast<int32_t>(home);
  }
  __syncthreads();
  if (home == PageHome::None) return;
  const bool host = home == PageHome::Host;
  const int32_t* free = host ? space.free_host_pages : space.free_pages;
  const int64_t size = host ? space.num_host_pages : space.num_pages;
  for (int64_t i = threadIdx.x; i < needed; i += kThreads) space.list[i] = free[(head + i) % size];
}

// One block: returns the pages.
__global__ void __launch_bounds__(kThreads) give_back_kernel(PageSpace space) {
  const auto home = static_cast<PageHome>(*space.home);
  if (home == PageHome::None) return;
  const bool host = home == PageHome::Host;
  int32_t* free = host ? space.free_host_pages : space.free_pages;
  const int64_t size = host ? space.num_host_pages : space.num_pages;
  int64_t& counter = space.state[host ? kHostTail : kTail];
  const int64_t tail = counter, count = space.pages_in_use();
  __syncthreads();  // all have read the counter
  for (int64_t i = threadIdx.x; i < count; i += kThreads) free[(tail + i) % size] = space.list[i];
  if (threadIdx.x == 0) counter = tail + count;
}

// One warp per row, four words in flight per lane: rows go to their pages, or come back with zeros
// where nothing was stored. Reads and writes each row once.
template <bool kStash, class Word>
__global__ void __launch_bounds__(kThreads)
    copy_kernel(PageSpace space, Word* rows, int64_t row_words) {
  constexpr int kUnroll = 4;
  const auto home = static_cast<PageHome>(*space.home);
  const int64_t in_use = home == PageHome::None ? 0 : space.rows_in_use();
  const int64_t end = kStash ? in_use : space.max_rows;
  auto* pages = static_cast<Word*>(home == PageHome::Host ? space.host_pages : space.pages);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  for (int64_t row = first_row; row < end; row += static_cast<int64_t>(gridDim.x) * kWarps) {
    Word* in_rows = rows + row * row_words;
    Word* in_pages = nullptr;
    if (row < in_use) {
      const int64_t page = space.list[row / space.page_rows];
      in_pages = pages + (page * space.page_rows + row % space.page_rows) * row_words;
    }
    const Word* from = kStash ? in_rows : in_pages;
    Word* to = kStash ? in_pages : in_rows;
    for (int64_t first = threadIdx.x % 32; first < row_words; first += kUnroll * 32) {
      Word words[kUnroll] = {};
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        if (from != nullptr && first + i * 32 < row_words) words[i] = from[first + i * 32];
      }
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        if (first + i * 32 < row_words) to[first + i * 32] = words[i];
      }
    }
  }
}

template <bool kStash, class Word>
void launch_copy_of(Stream& stream, const PageSpace& space, const Tensor& rows, int64_t row_bytes) {
  const int64_t blocks = std::min(ceil_div(rows.dim(0), kWarps), kMaxBlocks);
  copy_kernel<kStash><<<grid_size(blocks), kThreads, 0, cuda_handle(stream)>>>(
      space, static_cast<Word*>(rows.raw()), row_bytes / static_cast<int64_t>(sizeof(Word)));
  CUDA_CHECK(cudaGetLastError());
}

// In the largest words that every row begins and ends at. Pages are aligned by the allocator.
template <bool kStash>
void launch_copy(Stream& stream, const PageSpace& space, const PagePool& pool, const Tensor& rows) {
  const auto element = static_cast<int64_t>(size_of(rows.dtype()));
  const int64_t row_bytes = pool.width() * element;
  const auto* row = static_cast<const uint8_t*>(rows.raw());
  const auto* page = static_cast<const uint8_t*>(pool.pages.raw());
  const auto* host_page = static_cast<const uint8_t*>(pool.host_pages.raw());
  if (row_bytes % 16 == 0 && aligned16(row, page, host_page))
    return launch_copy_of<kStash, uint4>(stream, space, rows, row_bytes);
  switch (element) {
    case 8:
      return launch_copy_of<kStash, uint64_t>(stream, space, rows, row_bytes);
    case 4:
      return launch_copy_of<kStash, uint32_t>(stream, space, rows, row_bytes);
    case 2:
      return launch_copy_of<kStash, uint16_t>(stream, space, rows, row_bytes);
    default:
      return launch_copy_of<kStash, uint8_t>(stream, space, rows, row_bytes);
  }
}

}  // namespace

void reset_pages(Stream& stream, const PagePool& pool) {
  const int64_t num_pages = pool.pages.dim(0), num_host_pages = pool.host_pages.dim(0);
  launch_map<1>(stream, std::max({num_pages, num_host_pages, int64_t{kPoolStateSize}}), false,
                ResetPages{pool.free_pages.data<int32_t>(), pool.free_host_pages.data<int32_t>(),
                           pool.state.data<int64_t>(), num_pages, num_host_pages});
}

void stash_pages(Stream& stream, const PagePool& pool, const PageList& list, const Tensor& flags,
                 const Tensor& rows, const Tensor& num_rows) {
  const PageSpace space = space_of(pool, list, rows, num_rows);
  take_kernel<<<1, kThreads, 0, cuda_handle(stream)>>>(space, flags.data<int32_t>());
  CUDA_CHECK(cudaGetLastError());
  if (rows.dim(0) > 0) launch_copy<true>(stream, space, pool, rows);
}

void unstash_pages(Stream& stream, const Tensor& rows, const PagePool& pool, const PageList& list,
                   const Tensor& num_rows) {
  const PageSpace space = space_of(pool, list, rows, num_rows);
  if (rows.dim(0) > 0) launch_copy<false>(stream, space, pool, rows);
  give_back_kernel<<<1, kThreads, 0, cuda_handle(stream)>>>(space);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace ferry::cuda
