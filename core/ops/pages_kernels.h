#pragma once

// The two backends of pages.h. Arguments are already checked.

#include "core/ops/pages.h"

namespace ferry::cpu {

void reset_pages(const PagePool& pool);
void stash_pages(const PagePool& pool, const PageList& list, const Tensor& flags,
                 const Tensor& rows, const Tensor& num_rows);
void unstash_pages(const Tensor& rows, const PagePool& pool, const PageList& list,
                   const Tensor& num_rows);

}  // namespace ferry::cpu

namespace ferry::cuda {

void reset_pages(Stream& stream, const PagePool& pool);
void stash_pages(Stream& stream, const PagePool& pool, const PageList& list, const Tensor& flags,
                 const Tensor& rows, const Tensor& num_rows);
void unstash_pages(Stream& stream, const Tensor& rows, const PagePool& pool, const PageList& list,
                   const Tensor& num_rows);

}  // namespace ferry::cuda
