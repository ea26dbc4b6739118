#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/ops/pages_kernels.h"

namespace ferry::cpu {
namespace {

int64_t rows_in_use(const Tensor& rows, const Tensor& num_rows) {
  return std::clamp<int64_t>(*num_rows.data<int32_t>(), 0, rows.dim(0));
}

int64_t num_pages(const PagePool& pool, int64_t num_rows) {
  return (num_rows + pool.page_rows() - 1) / pool.page_rows();
}

// The circular list that pages of a home come from.
struct FreeList {
  FreeList(const PagePool& pool, PageHome home)
      : pages(home == PageHome::Host ? pool.free_host_pages : pool.free_pages),
        head(pool.state.data<int64_t>()[home == PageHome::Host ? kHostHead : kHead]),
        tail(pool.state.data<int64_t>()[home == PageHome::Host ? kHostTail : kTail]) {}

  int64_t available() const { return tail - head; }
  int32_t& at(int64_t counter) const { return pages.data<int32_t>()[counter % pages.dim(0)]; }

  Tensor pages;
  int64_t& head;
  int64_t& tail;
};

// Calls body(first byte in the pages, first byte in rows, bytes) for each page of the list.
template <class Body>
void for_each_page(const PagePool& pool, const PageList& list, const Tensor& rows, int64_t num_rows,
                   Body&& body) {
  const auto home = static_cast<PageHome>(*list.home.data<int32_t>());
  const Tensor& pages = home == PageHome::Host ? pool.host_pages : pool.pages;
  const int64_t row_bytes = pool.width() * static_cast<int64_t>(size_of(rows.dtype()));
  const int64_t page_rows = pool.page_rows();
  auto* in_pages = static_cast<std::byte*>(pages.raw());
  auto* in_rows = static_cast<std::byte*>(rows.raw());
  for (int64_t page = 0; page < num_pages(pool, num_rows); ++page) {
    const int64_t first = page * page_rows;
    const int64_t bytes = std::min(page_rows, num_rows - first) * row_bytes;
    body(in_pages + list.pages.data<int32_t>()[page] * page_rows * row_bytes,
         in_rows + first * row_bytes, static_cast<size_t>(bytes));
  }
}

}  // namespace

void reset_pages(const PagePool& pool) {
  int64_t* state = pool.state.data<int64_t>();
  std::fill(state, state + kPoolStateSize, 0);
  for (const Tensor& list : {pool.free_pages, pool.free_host_pages})
    std::iota(list.data<int32_t>(), list.data<int32_t>() + list.dim(0), 0);
  state[kTail] = pool.free_pages.dim(0);
  state[kHostTail] = pool.free_host_pages.dim(0);
}

void stash_pages(const PagePool& pool, const PageList& list, const Tensor& flags,
                 const Tensor& rows, const Tensor& num_rows) {
  const int64_t count = rows_in_use(rows, num_rows), needed = num_pages(pool, count);
  int32_t* flag = flags.data<int32_t>();
  PageHome home = PageHome::None;
  if (flag[kStashOverflow] == 0) {
    if (FreeList(pool, PageHome::Device).available() >= needed)
      home = PageHome::Device;
    else if (FreeList(pool, PageHome::Host).available() >= needed)
      home = PageHome::Host;
  }
  *list.home.data<int32_t>() = static_cast<int32_t>(home);
  if (home == PageHome::None) {
    flag[kStashOverflow] = 1;
    return;
  }
  if (home == PageHome::Host) {
    flag[kStashSpilled] = 1;
    pool.state.data<int64_t>()[kHostRows] += count;
  }
  const FreeList free(pool, home);
  for (int64_t i = 0; i < needed; ++i) list.pages.data<int32_t>()[i] = free.at(free.head++);
  for_each_page(pool, list, rows, count,
                [](void* page, void* row, size_t bytes) { std::memcpy(page, row, bytes); });
}

void unstash_pages(const Tensor& rows, const PagePool& pool, const PageList& list,
                   const Tensor& num_rows) {
  const auto home = static_cast<PageHome>(*list.home.data<int32_t>());
  const int64_t count = home == PageHome::None ? 0 : rows_in_use(rows, num_rows);
  for_each_page(pool, list, rows, count,
                [](void* page, void* row, size_t bytes) { std::memcpy(row, page, bytes); });
  const int64_t used = count * pool.width() * static_cast<int64_t>(size_of(rows.dtype()));
  std::memset(static_cast<std::byte*>(rows.raw()) + used, 0,
              static_cast<size_t>(rows.bytes() - used));
  const FreeList free(pool, home);
  for (int64_t i = 0; i < num_pages(pool, count); ++i)
    free.at(free.tail++) = list.pages.data<int32_t>()[i];
}

}  // namespace ferry::cpu
