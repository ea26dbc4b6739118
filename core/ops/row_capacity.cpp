#include "core/ops/row_capacity.h"

#include "core/ops/row_capacity_kernels.h"
#include "core/ops/run_op.h"

namespace ferry {

void limit_rows(Stream& stream, const Tensor& offsets, const Tensor& num_over,
                const RoutingPlan& plan, int64_t capacity) {
  CHECK(offsets.defined() && offsets.shape().rank() == 1 && offsets.dim(0) >= 1,
        "offsets must be [m+1]");
  CHECK(offsets.dim(0) <= plan.offsets.dim(0), offsets.dim(0) - 1, " experts of a plan of ",
        plan.counts.dim(0));
  CHECK_SHAPE(num_over, {1});
  CHECK(offsets.dtype() == DType::I32 && num_over.dtype() == DType::I32, "offsets are ",
        name_of(offsets.dtype()), ", num_over is ", name_of(num_over.dtype()));
  CHECK(!offsets.same_memory(plan.offsets), "the limited offsets are the memory of the plan's");
  CHECK(capacity >= 0 && capacity < kNoRow, "a capacity of ", capacity, " rows");
  run_op(stream, cpu::limit_rows, cuda::limit_rows, offsets, num_over, plan, capacity);
}

}  // namespace ferry
