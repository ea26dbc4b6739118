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

void make_regroup_plan(const RoutingPlan& plan, const Tensor& counts) {
  const int64_t num_ranks = counts.dim(0), num_experts = counts.dim(1);
  const int64_t num_slots = plan.row_of_slot.dim(0);
  const int32_t* count = counts.data<int32_t>();
  int32_t* total = plan.counts.data<int32_t>();
  int32_t* offsets = plan.offsets.data<int32_t>();
  std::fill(total, total + num_experts, 0);
  for (int64_t rank = 0; rank < num_ranks; ++rank)
    for (int64_t e = 0; e < num_experts; ++e) total[e] += count[rank * num_experts + e];
  offsets[0] = 0;
  for (int64_t e = 0; e < num_experts; ++e) offsets[e + 1] = offsets[e] + total[e];
  CHECK(offsets[num_experts] <= num_slots, offsets[num_experts], " rows for a plan of ", num_slots);

  std::vector<int32_t> next(offsets, offsets + num_experts);
  int32_t* row_of_slot = plan.row_of_slot.data<int32_t>();
  int32_t* slot_of_row = plan.slot_of_row.data<int32_t>();
  int32_t slot = 0;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    for (int64_t e = 0; e < num_experts; ++e) {
      for (int32_t i = 0; i < count[rank * num_experts + e]; ++i, ++slot) {
        const int32_t row = next[e]++;
        row_of_slot[slot] = row;
        slot_of_row[row] = slot;
      }
    }
  }
  for (; slot < num_slots; ++slot) row_of_slot[slot] = slot_of_row[slot] = slot;
}

void expand_choices(const Tensor& virtual_experts, const Tensor& experts, int64_t experts_per_rank,
                    int64_t copies) {
  const int32_t* from = experts.data<int32_t>();
  int32_t* to = virtual_experts.data<int32_t>();
  for (int64_t slot = 0; slot < experts.numel(); ++slot) {
    const int64_t rank = from[slot] / experts_per_rank * copies, e = from[slot] % experts_per_rank;
    for (int64_t q = 0; q < copies; ++q)
      *to++ = static_cast<int32_t>((rank + q) * experts_per_rank + e);
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

void gather_scalars(const Tensor& out, const Tensor& in, const Tensor& index, int64_t divisor) {
  dispatch_float(in.dtype(), [&]<class T>() {
    const int32_t* index_of = index.data<int32_t>();
    const T* from = in.data<T>();
    T* to = out.data<T>();
    for (int64_t i = 0; i < out.numel(); ++i) {
      const int64_t at = index_of[i] / divisor;
      to[i] = at < in.numel() ? from[at] : T(compute_t<T>{0});
    }
  });
}

void sum_copies(const Tensor& out, const Tensor& in, int64_t copies) {
  dispatch_float(in.dtype(), [&]<class T>() {
    const T* from = in.data<T>();
    T* to = out.data<T>();
    for (int64_t i = 0; i < out.numel(); ++i) {
      compute_t<T> sum = 0;
      for (int64_t j = 0; j < copies; ++j) sum += compute_t<T>(*from++);
      to[i] = T(sum);
    }
  });
}

}  // namespace ferry::cpu
