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

void find_destinations(const Tensor& destinations, const Tensor& experts, int64_t experts_per_rank,
                       int64_t copies, int64_t num_ranks) {
  const int64_t top_k = experts.dim(1);
  int32_t* to = destinations.data<int32_t>();
  for (int64_t t = 0; t < experts.dim(0); ++t) {
    const int32_t* chosen = experts.data<int32_t>() + t * top_k;
    for (int64_t j = 0; j < top_k; ++j) {
      const int64_t part = chosen[j] / experts_per_rank;
      const bool again =
          std::any_of(chosen, chosen + j, [&](int32_t e) { return e / experts_per_rank == part; });
      for (int64_t q = 0; q < copies; ++q)
        *to++ = static_cast<int32_t>(part * copies + q + (again ? num_ranks : 0));
    }
  }
}

void localise_experts(const Tensor& local_experts, const Tensor& experts, int64_t first,
                      int64_t num_local) {
  const int32_t* from = experts.data<int32_t>();
  int32_t* to = local_experts.data<int32_t>();
  for (int64_t slot = 0; slot < experts.numel(); ++slot) {
    const int64_t e = from[slot] - first;
    to[slot] = static_cast<int32_t>(0 <= e && e < num_local ? e : num_local);
  }
}

void gather_rows(const Tensor& rows, const Tensor& x, const Tensor& slot_of_row, int64_t top_k) {
  const size_t row_bytes = static_cast<size_t>(x.dim(1)) * size_of(x.dtype());
  const int32_t* slots = slot_of_row.data<int32_t>();
  auto* to = static_cast<std::byte*>(rows.raw());
  const auto* from = static_cast<const std::byte*>(x.raw());
  for (int64_t r = 0; r < rows.dim(0); ++r) {
    const auto token = static_cast<size_t>(slots[r] / top_k);
    std::memcpy(to + static_cast<size_t>(r) * row_bytes, from + token * row_bytes, row_bytes);
  }
}

void permute_rows(const Tensor& rows, const Tensor& x, const RoutingPlan& plan) {
  if (rows.numel() == 0) return;
  gather_rows(rows, x, plan.slot_of_row, plan.row_of_slot.dim(0) / x.dim(0));
}

void combine_rows(const Tensor& y, const Tensor& rows, const Tensor& residual,
                  const RoutingPlan& plan) {
  if (y.numel() == 0) return;
  dispatch_float(y.dtype(), [&]<class T>() {
    using S = compute_t<T>;
    const int64_t width = y.dim(1), top_k = plan.row_of_slot.dim(0) / y.dim(0);
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
        const int64_t row = row_of_slot[t * top_k + j];
        if (row >= rows.dim(0)) continue;
        const T* from = rows.data<T>() + row * width;
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
    for (int64_t i = 0; i < out.numel(); ++i)
      to[i] = index_of[i] < in.numel() ? from[index_of[i]] : T(compute_t<T>{0});
  });
}

}  // namespace ferry::cpu
