#pragma once

// Rows of tensors in pages of a fixed pool, so that tensors of which only some rows are in use take
// the memory of those rows. How many that are is known on the device only, and so is which pages
// are free: the host never waits.
//
// A tensor lies in pages of the device or, if too few of those are free, in pages of the host,
// never in both. If neither has enough it is not stored, and neither is any later one: the overflow
// is flagged, and whoever uses the pool throws the results away.
//
// Free pages are a circular list that is taken from at its head and returned to at its tail; both
// count up in 64 bits and are never reset within a step. All calls for a pool are on one stream,
// which makes the order of taking and returning, and so every page number, the same each time.
//
// R rows of width W in a tensor; P rows in a page. Any dtype. Source: Megatron-LM's paged stash.

#include <string_view>

#include "core/tensor.h"

namespace ferry {

struct PagePool {
  Tensor pages;            // [num_pages, P, W] on the device
  Tensor host_pages;       // [num_host_pages, P, W] in host memory, which kernels access directly
  Tensor free_pages;       // [num_pages] I32: the circular list
  Tensor free_host_pages;  // [num_host_pages] I32
  Tensor state;            // [kPoolStateSize] I64

  /// Both numbers of pages may be 0. Must be reset_pages() before use.
  static PagePool empty(Stream& stream, std::string_view name, DType dtype, int64_t width,
                        int64_t page_rows, int64_t num_pages, int64_t num_host_pages);
  int64_t page_rows() const { return pages.dim(1); }
  int64_t width() const { return pages.dim(2); }
};

/// What PagePool::state holds. tail - head pages are free.
enum PoolState : int {
  kHead,
  kTail,
  kHostHead,
  kHostTail,
  kHostRows,  // that went to the host since reset_pages()
  kPoolStateSize
};

/// Where one tensor is. Made for tensors of up to `max_rows` rows.
struct PageList {
  Tensor pages;  // [ceil(max_rows / P)] I32
  Tensor home;   // [1] I32: PageHome

  static PageList empty(Stream& stream, const PagePool& pool, int64_t max_rows);
};
enum class PageHome : int32_t { Device, Host, None };

/// The indices of `flags` [2] I32, which all pools of a rank share. Never cleared here.
enum StashFlag : int { kStashOverflow, kStashSpilled, kNumStashFlags };

/// Makes all pages free.
void reset_pages(Stream& stream, const PagePool& pool);

/// Takes pages for the first num_rows[0] rows of rows [R, W] and copies them there; num_rows [1]
/// I32. Nothing is taken or copied if flags[kStashOverflow] is set, or will be by this call. Sets
/// flags[kStashSpilled] if they go to host pages.
void stash_pages(Stream& stream, const PagePool& pool, const PageList& list, const Tensor& flags,
                 const Tensor& rows, const Tensor& num_rows);

/// Copies the same rows back and returns their pages; the rows beyond, or all if they were not
/// stored, become zeros.
void unstash_pages(Stream& stream, const Tensor& rows, const PagePool& pool, const PageList& list,
                   const Tensor& num_rows);

}  // namespace ferry
