#include <algorithm>
#include <cstring>
#include <vector>

#include "core/ops/permute_kernels.h"

namespace ferry::cpu {

// A counting sort: slots are taken in order, so that rows of one expert keep the order of tokens.
void make_routing_plan(const RoutingPlan& plan, const Tensor& experts) {
  const int64_t num_experts = plan.counts.dim(0), slots = experts.numel();
  const int32_t* expert_of_slot = experts.data<int32_t>();
  int32_t* counts = plan.counts.data<int32_t>();
  int32_t* offsets = plan.offsets.data<int32_t>();
  std::fill(counts, counts + num_experts, 0);
  for (int64_t s = 0; s < slots; ++s) {
    const int32_t e = expert_of_slot[s];
    CHECK(0 <= e && e < num_experts, "slot ", s, " chose expert ", e, " of ", num_experts);
    ++counts[e];
  }
  offsets[0] = 0;
  for (int64_t e = 0; e < num_experts; ++e) offsets[e + 1] = offsets[e] + counts[e];

  std::vector<int32_t> next(offsets, offsets + num_experts);
  int32_t* row_of_slot = plan.row_of_slot.data<int32_t>();
  int32_t* slot_of_row = plan.slot_of_row.data<int32_t>();
  for (int64_t s = 0; s < slots; ++s) {
    const int32_t row = next[expert_of_slot[s]]++;
    row_of_slot[s] = row;
    slot_of_row[row] = static_cast<int32_t>(s);
  }
}

void permute_rows(const Tensor& rows, const Tensor& x, const RoutingPlan& plan) {
  if (rows.numel() == 0) return;
  const int64_t top_k = rows.dim(0) / x.dim(0);
  const size_t row_bytes = static_cast<size_t>(x.dim(1)) * size_of(x.dtype());
  const int32_t* slot_of_row = plan.slot_of_row.data<int32_t>();
  auto* to = static_cast<std::byte*>(rows.raw());
  const auto* from = static_cast<const std::byte*>(x.raw());
  for (int64_t r = 0; r < rows.dim(0); ++r) {
    const auto token = static_cast<size_t>(slot_of_row[r] / top_k);
    std::memcpy(to + static_cast<size_t>(r) * row_bytes, from + token * row_bytes, row_bytes);
  }
}

void combine_rows(const Tensor& y, const Tensor& rows, const Tensor& residual,
                  const RoutingPlan& plan) {
  if (y.numel() == 0) return;
  dispatch_float(y.dtype(), [&]<class T>() {
    using S = compute_t<T>;
    const int64_t width = y.dim(1), top_k = rows.dim(0) / y.dim(0);
    const int32_t* row_of_slot = plan.row_of_slot.data<int32_t>();
    std::vector<S> sums(width);
    S* sum = sums.data();
    for (int64_t t = 0; t < y.dim(0); ++t) {
      if (residual.defined()) {
        const T* from = residual.data<T>() + t * width;
        for (int64_t i = 0; i < width; ++i) sum[i] = S(from[i]);
      } else {
        std::fill(sum, sum + width, S{0});
      }
      for (int64_t j = 0; j < top_k; ++j) {
        const T* from = rows.data<T>() + int64_t{row_of_slot[t * top_k + j]} * width;
#pragma GCC ivdep
        for (int64_t i = 0; i < width; ++i) sum[i] += S(from[i]);
      }
      T* to = y.data<T>() + t * width;
#pragma GCC ivdep
      for (int64_t i = 0; i < width; ++i) to[i] = T(sum[i]);
    }
  });
}

void gather_scalars(const Tensor& out, const Tensor& in, const Tensor& index) {
  dispatch_float(in.dtype(), [&]<class T>() {
    const int32_t* index_of = index.data<int32_t>();
    const T* from = in.data<T>();
    T* to = out.data<T>();
    const int64_t n = out.numel();
    for (int64_t i = 0; i < n; ++i) to[i] = from[index_of[i]];
  });
}

}  // namespace ferry::cpu
