#include "app/grouped_product.h"

#include <limits>

#include "core/host_copy.h"
#include "core/ops/gemm.h"
#include "core/ops/grouped_gemm.h"

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
  return 2 * static_cast<double>(x.dim(0)) * static_cast<double>(x.dim(1)) *
         static_cast<double>(y.dim(1));
}

Tensor GroupedProduct::offsets(Stream& stream) const {
  std::vector<int32_t> ends{0};
  for (const int64_t count : counts) {
    CHECK(count <= std::numeric_limits<int32_t>::max() - ends.back(), "offsets are 32 bits wide");
    ends.push_back(ends.back() + static_cast<int32_t>(count));
  }
  CHECK(ends.back() == x.dim(0), ends.back(), " rows in groups, ", x.dim(0), " in x");
  return from_host(stream, "bench offsets", ends, {static_cast<int64_t>(ends.size())});
}

void GroupedProduct::enqueue(Stream& stream, const Tensor& offsets) const {
  switch (pass) {
    case GroupedPass::Forward:
      return grouped_gemm_forward(stream, y, x, weight, offsets);
    case GroupedPass::Dgrad:
      return grouped_gemm_dgrad(stream, x, y, weight, offsets);
    case GroupedPass::Wgrad:
      return grouped_gemm_wgrad(stream, weight, y, x, offsets);
  }
}

void GroupedProduct::enqueue_batched(Stream& stream) const {
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
