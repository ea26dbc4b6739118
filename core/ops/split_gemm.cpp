#include "core/ops/split_gemm.h"

#include "core/ops/elementwise.h"
#include "core/ops/gemm.h"
#include "core/ops/run_op.h"
#include "core/ops/split_gemm_kernels.h"

namespace ferry {
namespace {

constexpr SplitOrder kAllParts{{0, 1, 2}};

// outputs [T, E], inputs [T, D], weight [E, D].
void check_shapes(const Tensor& outputs, const Tensor& inputs, const Tensor& weight) {
  CHECK(inputs.shape().rank() == 2 && weight.shape().rank() == 2, "activations are ",
        inputs.shape(), ", weight is ", weight.shape());
  CHECK(weight.dim(1) == inputs.dim(1), "weight is ", weight.shape(), " for activations of ",
        inputs.shape());
  CHECK_SHAPE(outputs, {inputs.dim(0), weight.dim(0)});
  const DType wide = accumulate_dtype(inputs.dtype());
  CHECK(outputs.dtype() == wide && weight.dtype() == wide, "activations are ",
        name_of(inputs.dtype()), ", outputs ", name_of(outputs.dtype()), ", weight ",
        name_of(weight.dtype()));
}

bool is_plain(const Tensor& activations) {
  return activations.dtype() == accumulate_dtype(activations.dtype());
}

// [R, 3C] of [R, C].
Tensor split_rows(Stream& stream, const Tensor& wide, SplitOrder order) {
  const Tensor parts = Tensor::empty(stream, "workspace: parts of numbers",
                                     {wide.dim(0), kSplitParts * wide.dim(1)}, DType::BF16);
  run_op(stream, cpu::split_rows, cuda::split_rows, parts, wide, order);
  return parts;
}

// [3R, C] of [R, C]: all rows of one place, then of the next.
Tensor split_matrix(Stream& stream, const Tensor& wide, SplitOrder order) {
  return split_rows(stream, wide.reshape({1, wide.numel()}), order)
      .reshape({kSplitParts * wide.dim(0), wide.dim(1)});
}

}  // namespace

void split_gemm_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& weight) {
  check_shapes(y, x, weight);
  if (is_plain(x)) return gemm(stream, y, x, Transpose::No, weight, Transpose::Yes);
  const Tensor by_part = Tensor::empty(stream, "workspace: products of parts",
                                       {y.dim(0), kSplitParts * y.dim(1)}, y.dtype());
  gemm(stream, by_part, x, Transpose::No, split_matrix(stream, weight, kAllParts), Transpose::Yes);
  run_op(stream, cpu::sum_places, cuda::sum_places, y, by_part);
}

void split_gemm_dgrad(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& weight) {
  check_shapes(dy, dx, weight);
  if (is_plain(dx)) return gemm(stream, dx, dy, Transpose::No, weight, Transpose::No);
  // Products of parts 0 and 0, 0 and 1, 1 and 0, one behind the other in the summed index: what the
  // others would add is far below the rounding of dx.
  gemm(stream, dx, split_rows(stream, dy, {{0, 0, 1}}), Transpose::No,
       split_matrix(stream, weight, {{0, 1, 0}}), Transpose::No);
}

void split_gemm_wgrad(Stream& stream, const Tensor& dweight, const Tensor& dy, const Tensor& x) {
  check_shapes(dy, x, dweight);
  if (is_plain(x)) return gemm(stream, dweight, dy, Transpose::Yes, x, Transpose::No, 1);
  const int64_t outputs = dy.dim(1);
  const Tensor by_part = Tensor::empty(stream, "workspace: products of parts",
                                       {kSplitParts * outputs, x.dim(1)}, dweight.dtype());
  gemm(stream, by_part, split_rows(stream, dy, kAllParts), Transpose::Yes, x, Transpose::No);
  for (int part = kSplitParts; part-- > 0;)
    accumulate(stream, dweight, by_part.rows(part * outputs, (part + 1) * outputs));
}

}  // namespace ferry
