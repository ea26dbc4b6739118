#include <algorithm>

#include "core/ops/map_cuda.cuh"
#include "core/ops/row_capacity_kernels.h"

namespace ferry::cuda {
namespace {

// One thread per slot, and per offset.
struct LimitRows {
  int32_t* offsets;
  int32_t* num_over;
  int32_t* row_of_slot;
  const int32_t* whole;
  int64_t last;
  int64_t num_slots;
  int32_t limit;
  template <int N>
  __device__ void apply(int64_t i) const {
    static_assert(N == 1);
    const int32_t num_rows = min(whole[last], limit);
    if (i <= last) offsets[i] = min(whole[i], limit);
    if (i == 0 && whole[last] > limit) ++*num_over;
    if (i < num_slots && row_of_slot[i] >= num_rows) row_of_slot[i] = kNoRow;
  }
};

}  // namespace

void limit_rows(Stream& stream, const Tensor& offsets, const Tensor& num_over,
                const RoutingPlan& plan, int64_t capacity) {
  const int64_t num_slots = plan.row_of_slot.dim(0), num_offsets = offsets.dim(0);
  launch_map<1>(stream, std::max(num_slots, num_offsets), false,
                LimitRows{offsets.data<int32_t>(), num_over.data<int32_t>(),
                          plan.row_of_slot.data<int32_t>(), plan.offsets.data<int32_t>(),
                          num_offsets - 1, num_slots, static_cast<int32_t>(capacity)});
}

}  // namespace ferry::cuda
