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

// rows [R', D] and tokens [T, D] that belong together: R = T*k slots, of which R' <= R are there.
void check_rows(const Tensor& rows, const Tensor& tokens, const RoutingPlan& plan) {
  check_plan(plan);
  CHECK(tokens.defined() && tokens.shape().rank() == 2, "the tokens must be [T, D]");
  CHECK(rows.defined() && rows.shape().rank() == 2, "the rows must be [R', D]");
  CHECK_SHAPE(rows, {rows.dim(0), tokens.dim(1)});
  CHECK(rows.dtype() == tokens.dtype(), name_of(rows.dtype()), " rows of ", name_of(tokens.dtype()),
        " tokens");
  const int64_t num_slots = plan.row_of_slot.dim(0), num_tokens = tokens.dim(0);
  CHECK(num_tokens == 0 ? num_slots == 0 : num_slots % num_tokens == 0, num_slots, " slots of ",
        num_tokens, " tokens");
  CHECK(rows.dim(0) <= num_slots, rows.dim(0), " rows of a plan of ", num_slots);
}

void check_choices(const Tensor& experts, const char* what) {
  CHECK(experts.defined() && experts.shape().rank() == 2, what, " must be [T, k]");
  CHECK(experts.dtype() == DType::I32, what, " are ", name_of(experts.dtype()));
}

}  // namespace

RoutingPlan RoutingPlan::empty(Stream& stream, int64_t num_experts, int64_t num_slots) {
  const auto make = [&](int64_t size) {
    return Tensor::empty(stream, "routing plan", {size}, DType::I32);
  };
  return {make(num_experts), make(num_experts + 1), make(num_slots), make(num_slots)};
}

void make_routing_plan(Stream& stream, const RoutingPlan& plan, const Tensor& experts) {
  check_plan(plan);
  check_choices(experts, "experts");
  CHECK_SHAPE(plan.row_of_slot, {experts.numel()});
  run_op(stream, cpu::make_routing_plan, cuda::make_routing_plan, plan, experts);
}

void find_destinations(Stream& stream, const Tensor& destinations, const Tensor& experts,
                       int64_t experts_per_rank, int64_t copies, int64_t num_ranks) {
  check_choices(destinations, "destinations");
  check_choices(experts, "experts");
  CHECK(experts_per_rank >= 1 && copies >= 1 && num_ranks >= copies, experts_per_rank,
        " experts per rank, ", copies, " copies, ", num_ranks, " ranks");
  CHECK_SHAPE(destinations, {experts.dim(0), experts.dim(1) * copies});
  run_op(stream, cpu::find_destinations, cuda::find_destinations, destinations, experts,
         experts_per_rank, copies, num_ranks);
}

void localise_experts(Stream& stream, const Tensor& local_experts, const Tensor& experts,
                      int64_t first, int64_t num_local) {
  check_choices(local_experts, "local experts");
  check_choices(experts, "experts");
  CHECK_SHAPE(local_experts, {experts.dim(0), experts.dim(1)});
  run_op(stream, cpu::localise_experts, cuda::localise_experts, local_experts, experts, first,
         num_local);
}

void permute_rows(Stream& stream, const Tensor& rows, const Tensor& x, const RoutingPlan& plan) {
  check_rows(rows, x, plan);
  run_op(stream, cpu::permute_rows, cuda::permute_rows, rows, x, plan);
}

void gather_rows(Stream& stream, const Tensor& rows, const Tensor& x, const Tensor& slot_of_row,
                 int64_t top_k) {
  CHECK(x.shape().rank() == 2 && slot_of_row.shape().rank() == 1, "x is ", x.shape(),
        ", slot_of_row ", slot_of_row.shape());
  CHECK_SHAPE(rows, {slot_of_row.dim(0), x.dim(1)});
  CHECK(rows.dtype() == x.dtype() && slot_of_row.dtype() == DType::I32, "rows are ",
        name_of(rows.dtype()), ", x is ", name_of(x.dtype()), ", slot_of_row ",
        name_of(slot_of_row.dtype()));
  CHECK(top_k >= 1, top_k, " choices");
  run_op(stream, cpu::gather_rows, cuda::gather_rows, rows, x, slot_of_row, top_k);
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
  CHECK(out.dtype() == in.dtype(), "out is ", name_of(out.dtype()));
  CHECK(in.dtype() == DType::F32 || in.dtype() == DType::F64, "in is ", name_of(in.dtype()));
  CHECK(!out.same_memory(in), "out is the memory of in");
  CHECK(out.numel() <= index.numel(), out.numel(), " outputs for ", index.numel(), " indices");
  CHECK(index.dtype() == DType::I32, "index is ", name_of(index.dtype()));
  run_op(stream, cpu::gather_scalars, cuda::gather_scalars, out, in, index);
}

}  // namespace ferry
