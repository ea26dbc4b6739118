#include "core/ops/permute.h"

#include "core/ops/permute_kernels.h"
#include "core/ops/run_op.h"

namespace ferry {
namespace {

void check_plan(const RoutingPlan& plan) {
  CHECK(plan.counts.defined() && plan.counts.shape().rank() == 1, "counts must be [E]");
  CHECK(plan.row_of_slot.defined() && plan.row_of_slot.shape().rank() == 1,
        "row_of_slot must be [R]");
  CHECK_SHAPE(plan.offsets, {plan.counts.dim(0) + 1});
  CHECK_SHAPE(plan.slot_of_row, {plan.row_of_slot.dim(0)});
  for (const Tensor* tensor : {&plan.counts, &plan.offsets, &plan.row_of_slot, &plan.slot_of_row}) {
    CHECK(tensor->dtype() == DType::I32, "a routing plan with ", name_of(tensor->dtype()));
  }
}

// rows [R, D] and tokens [T, D] that belong together: R = T*k slots.
void check_rows(const Tensor& rows, const Tensor& tokens, const RoutingPlan& plan) {
  check_plan(plan);
  CHECK(tokens.defined() && tokens.shape().rank() == 2, "the tokens must be [T, D]");
  CHECK_SHAPE(rows, {plan.row_of_slot.dim(0), tokens.dim(1)});
  CHECK(rows.dtype() == tokens.dtype(), name_of(rows.dtype()), " rows of ", name_of(tokens.dtype()),
        " tokens");
  const int64_t num_rows = rows.dim(0), num_tokens = tokens.dim(0);
  CHECK(num_tokens == 0 ? num_rows == 0 : num_rows % num_tokens == 0, num_rows, " rows of ",
        num_tokens, " tokens");
}

}  // namespace

void make_routing_plan(Stream& stream, const RoutingPlan& plan, const Tensor& experts) {
  check_plan(plan);
  CHECK(experts.defined() && experts.shape().rank() == 2, "experts must be [T, k]");
  CHECK(experts.dtype() == DType::I32, "experts are ", name_of(experts.dtype()));
  CHECK_SHAPE(plan.row_of_slot, {experts.numel()});
  run_op(stream, cpu::make_routing_plan, cuda::make_routing_plan, plan, experts);
}

void permute_rows(Stream& stream, const Tensor& rows, const Tensor& x, const RoutingPlan& plan) {
  check_rows(rows, x, plan);
  run_op(stream, cpu::permute_rows, cuda::permute_rows, rows, x, plan);
}

void combine_rows(Stream& stream, const Tensor& y, const Tensor& rows, const Tensor& residual,
                  const RoutingPlan& plan) {
  check_rows(rows, y, plan);
  if (residual.defined()) {
    CHECK_SHAPE(residual, {y.dim(0), y.dim(1)});
    CHECK(residual.dtype() == y.dtype(), "residual is ", name_of(residual.dtype()));
  }
  run_op(stream, cpu::combine_rows, cuda::combine_rows, y, rows, residual, plan);
}

void gather_scalars(Stream& stream, const Tensor& out, const Tensor& in, const Tensor& index) {
  CHECK(out.numel() == index.numel(), out.numel(), " outputs for ", index.numel(), " indices");
  CHECK(out.dtype() == in.dtype(), "out is ", name_of(out.dtype()));
  CHECK(in.dtype() == DType::F32 || in.dtype() == DType::F64, "in is ", name_of(in.dtype()));
  CHECK(index.dtype() == DType::I32, "index is ", name_of(index.dtype()));
  CHECK(!out.same_memory(in), "out is the memory of in");
  run_op(stream, cpu::gather_scalars, cuda::gather_scalars, out, in, index);
}

}  // namespace ferry
