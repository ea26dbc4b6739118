#include "core/ops/pages.h"

#include "core/ops/pages_kernels.h"
#include "core/ops/run_op.h"

namespace ferry {
namespace {

void check_tensor(const PagePool& pool, const PageList& list, const Tensor& rows,
                  const Tensor& num_rows) {
  CHECK(rows.defined() && rows.shape().rank() == 2 && rows.dim(1) == pool.width(),
        "rows have shape ", rows.shape(), ", not [R, ", pool.width(), "]");
  CHECK(rows.dtype() == pool.pages.dtype(), name_of(rows.dtype()), " rows in pages of ",
        name_of(pool.pages.dtype()));
  CHECK_SHAPE(num_rows, {1});
  CHECK(num_rows.dtype() == DType::I32, "num_rows is ", name_of(num_rows.dtype()));
  CHECK_SHAPE(list.home, {1});
  CHECK(rows.dim(0) <= list.pages.dim(0) * pool.page_rows(), rows.dim(0), " rows for a list of ",
        list.pages.dim(0), " pages of ", pool.page_rows());
}

}  // namespace

PagePool PagePool::empty(Stream& stream, std::string_view name, DType dtype, int64_t width,
                         int64_t page_rows, int64_t num_pages, int64_t num_host_pages) {
  CHECK(width >= 1 && page_rows >= 1, "pages of ", page_rows, " rows of width ", width);
  CHECK(num_pages <= INT32_MAX && num_host_pages <= INT32_MAX, num_pages, " and ", num_host_pages,
        " pages");
  PagePool pool;
  pool.pages = Tensor::empty(stream, name, {num_pages, page_rows, width}, dtype);
  pool.host_pages = Tensor::host(stream.device(), name, {num_host_pages, page_rows, width}, dtype);
  stream.hold(pool.host_pages);
  pool.free_pages = Tensor::empty(stream, name, {num_pages}, DType::I32);
  pool.free_host_pages = Tensor::empty(stream, name, {num_host_pages}, DType::I32);
  pool.state = Tensor::empty(stream, name, {kPoolStateSize}, DType::I64);
  return pool;
}

PageList PageList::empty(Stream& stream, const PagePool& pool, int64_t max_rows) {
  const int64_t num_pages = (max_rows + pool.page_rows() - 1) / pool.page_rows();
  return {Tensor::empty(stream, "page list", {num_pages}, DType::I32),
          Tensor::empty(stream, "page list", {1}, DType::I32)};
}

void reset_pages(Stream& stream, const PagePool& pool) {
  run_op(stream, cpu::reset_pages, cuda::reset_pages, pool);
}

void stash_pages(Stream& stream, const PagePool& pool, const PageList& list, const Tensor& flags,
                 const Tensor& rows, const Tensor& num_rows) {
  check_tensor(pool, list, rows, num_rows);
  CHECK_SHAPE(flags, {kNumStashFlags});
  CHECK(flags.dtype() == DType::I32, "flags are ", name_of(flags.dtype()));
  run_op(stream, cpu::stash_pages, cuda::stash_pages, pool, list, flags, rows, num_rows);
}

void unstash_pages(Stream& stream, const Tensor& rows, const PagePool& pool, const PageList& list,
                   const Tensor& num_rows) {
  check_tensor(pool, list, rows, num_rows);
  run_op(stream, cpu::unstash_pages, cuda::unstash_pages, rows, pool, list, num_rows);
}

}  // namespace ferry
