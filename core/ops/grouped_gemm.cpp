#include "core/ops/grouped_gemm.h"

#include "core/ops/grouped_gemm_kernels.h"
#include "core/ops/permute.h"
#include "core/ops/run_op.h"
#include "core/ops/swiglu.h"
#include "core/ops/swiglu_kernels.h"

namespace ferry {
namespace {

void check_gathered(const Rows& rows) {
  const Tensor& slot_of_row = rows.slot_of_row;
  CHECK(slot_of_row.shape().rank() == 1 && slot_of_row.dtype() == DType::I32, "slot_of_row is ",
        name_of(slot_of_row.dtype()), slot_of_row.shape(), ", not [R] I32");
  const int64_t num_rows = rows.num_rows(), num_tokens = rows.x.dim(0);
  CHECK(num_tokens > 0 ? num_rows % num_tokens == 0 : num_rows == 0, num_rows, " gathered rows of ",
        num_tokens, " tokens");
}

// `rows` stand for the tensor with K columns, y for the one with N.
void check_groups(const Tensor& y, const Rows& rows, const Tensor& weight, const Tensor& offsets) {
  const Tensor& x = rows.x;
  CHECK(weight.defined() && weight.shape().rank() == 3, "weight has shape ", weight.shape(),
        ", not [E, N, K]");
  CHECK(x.defined() && x.shape().rank() == 2, "x has shape ", x.shape(), ", not [R, K]");
  CHECK_SHAPE(x, {x.dim(0), weight.dim(2)});
  if (rows.gathered()) check_gathered(rows);
  CHECK_SHAPE(y, {rows.num_rows(), weight.dim(1)});
  CHECK_SHAPE(offsets, {weight.dim(0) + 1});
  CHECK(offsets.dtype() == DType::I32, "offsets are ", name_of(offsets.dtype()));
  CHECK(y.dtype() == x.dtype(), "rows are ", name_of(y.dtype()), " and ", name_of(x.dtype()));
}

void check_same_dtype(const Tensor& weight, const Tensor& x) {
  CHECK(weight.dtype() == x.dtype(), "weight is ", name_of(weight.dtype()), ", rows are ",
        name_of(x.dtype()));
}

// Of gathered rows, where no kernel reads them in place.
constexpr std::string_view kCopiedRows = "gathered rows";

}  // namespace

Tensor Rows::contiguous(Stream& stream, std::string_view name) const {
  if (!gathered()) return x;
  const Tensor rows = Tensor::empty(stream, name, {num_rows(), x.dim(1)}, x.dtype());
  if (num_rows() > 0) gather_rows(stream, rows, x, slot_of_row, num_rows() / x.dim(0));
  return rows;
}

void grouped_gemm_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& weight,
                          const Tensor& offsets) {
  check_groups(y, x, weight, offsets);
  check_same_dtype(weight, x);
  run_op(stream, cpu::grouped_gemm_forward, cuda::grouped_gemm_forward, y, x, weight, offsets);
}

void grouped_gemm_dgrad(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& weight,
                        const Tensor& offsets) {
  check_groups(dy, dx, weight, offsets);
  check_same_dtype(weight, dy);
  run_op(stream, cpu::grouped_gemm_dgrad, cuda::grouped_gemm_dgrad, dx, dy, weight, offsets);
}

void grouped_gemm_swiglu_forward(Stream& stream, const Tensor& gate_up, const Tensor& h,
                                 const Rows& x, const Tensor& weight, const Tensor& prob,
                                 const Tensor& offsets) {
  check_groups(gate_up, x, weight, offsets);
  check_same_dtype(weight, x.x);
  check_swiglu(h, gate_up, prob);
  if (!stream.device().is_cpu() && gate_up.numel() > 0 && weight.numel() > 0 &&
      cuda::grouped_gemm_swiglu_forward(stream, gate_up, h, x, weight, prob, offsets))
    return;
  grouped_gemm_forward(stream, gate_up, x.contiguous(stream, kCopiedRows), weight, offsets);
  swiglu_forward(stream, h, gate_up, prob);
}

void grouped_gemm_swiglu_backward(Stream& stream, const Tensor& dgate_up, const Tensor& dprob,
                                  const Tensor& dy, const Tensor& weight, const Tensor& gate_up,
                                  const Tensor& prob, const Tensor& offsets) {
  check_same_dtype(weight, dy);
  CHECK(weight.shape().rank() == 3, "weight has shape ", weight.shape(), ", not [E, N, F]");
  CHECK_SHAPE(gate_up, {dy.dim(0), 2 * weight.dim(2)});
  CHECK_SHAPE(dgate_up, {gate_up.dim(0), gate_up.dim(1)});
  if (!stream.device().is_cpu() && dy.numel() > 0 && weight.numel() > 0 &&
      cuda::grouped_gemm_swiglu_backward(stream, dgate_up, dprob, dy, weight, gate_up, prob,
                                         offsets))
    return;
  const Tensor dh = Tensor::empty(stream, "gradients", {dy.dim(0), weight.dim(2)}, gate_up.dtype());
  grouped_gemm_dgrad(stream, dh, dy, weight, offsets);
  swiglu_backward(stream, dgate_up, dprob, dh, gate_up, prob);
}

void grouped_gemm_wgrad(Stream& stream, const Tensor& dweight, const Tensor& dy, const Rows& x,
                        const Tensor& offsets) {
  check_groups(dy, x, dweight, offsets);
  CHECK(dweight.dtype() == accumulate_dtype(x.x.dtype()), "dweight is ", name_of(dweight.dtype()),
        ", rows are ", name_of(x.x.dtype()));
  run_op(stream, cpu::grouped_gemm_wgrad, cuda::grouped_gemm_wgrad, dweight, dy,
         x.contiguous(stream, kCopiedRows), offsets);
}

}  // namespace ferry
