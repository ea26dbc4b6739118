#include "app/grouped_product.h"

#include <limits>

#include "core/host_copy.h"
#include "core/ops/gemm.h"

namespace ferry {

const Tensor& GroupedProduct::output() const {
  switch (pass) {
    case GroupedPass::Forward:
      return y;
    case GroupedPass::Dgrad:
      return x;
    case GroupedPass::Wgrad:
      break;
  }
  return weight;
}

double GroupedProduct::flops() const {
  return 2 * static_cast<double>(y.dim(0)) * static_cast<double>(x.dim(1)) *
         static_cast<double>(y.dim(1));
}

Tensor GroupedProduct::offsets(Stream& stream) const {
  std::vector<int32_t> ends{0};
  for (const int64_t count : counts) {
    CHECK(count <= std::numeric_limits<int32_t>::max() - ends.back(), "offsets are 32 bits wide");
    ends.push_back(ends.back() + static_cast<int32_t>(count));
  }
  const int64_t num_rows = rows().num_rows();
  CHECK(ends.back() == num_rows, ends.back(), " rows in groups, ", num_rows, " in x");
  return from_host(stream, "bench offsets", ends, {static_cast<int64_t>(ends.size())});
}

void GroupedProduct::enqueue(Stream& stream, const Tensor& offsets) const {
  CHECK(!slot_of_row.defined() || h.defined() || pass == GroupedPass::Wgrad, name,
        ": rows in place are read by wgrad and forward with SwiGLU");
  switch (pass) {
    case GroupedPass::Forward:
      if (h.defined())
        return grouped_gemm_swiglu_forward(stream, y, h, rows(), weight, prob, offsets);
      return grouped_gemm_forward(stream, y, x, weight, offsets);
    case GroupedPass::Dgrad:
      return grouped_gemm_dgrad(stream, x, y, weight, offsets);
    case GroupedPass::Wgrad:
      return grouped_gemm_wgrad(stream, weight, y, rows(), offsets);
  }
}

void GroupedProduct::enqueue_batched(Stream& stream) const {
  CHECK(!slot_of_row.defined(), name, ": a dense product of rows in place");
  const int64_t rows = x.dim(0) / num_groups();
  CHECK(rows * num_groups() == x.dim(0), x.dim(0), " rows in ", num_groups(), " equal groups");
  const Tensor batched_x = x.reshape({num_groups(), rows, x.dim(1)});
  const Tensor batched_y = y.reshape({num_groups(), rows, y.dim(1)});
  switch (pass) {
    case GroupedPass::Forward:
      return gemm_batched(stream, batched_y, batched_x, Transpose::No, weight, Transpose::Yes);
    case GroupedPass::Dgrad:
      return gemm_batched(stream, batched_x, batched_y, Transpose::No, weight, Transpose::No);
    case GroupedPass::Wgrad:
      return gemm_batched(stream, weight, batched_y, Transpose::Yes, batched_x, Transpose::No, 1);
  }
}

}  // namespace ferry
