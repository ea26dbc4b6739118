#include "core/ops/rope.h"

#include "core/ops/attention_kernels.h"
#include "core/ops/rope_kernels.h"
#include "core/ops/run_op.h"

namespace ferry {

void rope_table(Stream& stream, const Tensor& cosine, const Tensor& sine, double theta) {
  CHECK(cosine.defined() && cosine.shape().rank() == 2, "cosine has shape ", cosine.shape(),
        ", not [seq, head_dim/2]");
  CHECK_SHAPE(sine, {cosine.dim(0), cosine.dim(1)});
  CHECK((cosine.dtype() == DType::F32 || cosine.dtype() == DType::F64) &&
            sine.dtype() == cosine.dtype(),
        "cosine is ", name_of(cosine.dtype()), ", sine is ", name_of(sine.dtype()));
  CHECK(theta > 0, "theta is ", theta);
  run_op(stream, cpu::rope_table, cuda::rope_table, cosine, sine, theta);
}

void rope(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& cosine,
          const Tensor& sine, const AttentionDims& dims, Rotation rotation) {
  check_attention_dims(dims);
  CHECK(dims.head_dim % 2 == 0, "RoPE pairs the elements of a head, whose size is ", dims.head_dim);
  CHECK_SHAPE(x, {dims.tokens(), dims.qkv_width()});
  CHECK_SHAPE(y, {dims.tokens(), dims.qkv_width()});
  CHECK_SHAPE(cosine, {dims.seq, dims.head_dim / 2});
  CHECK_SHAPE(sine, {dims.seq, dims.head_dim / 2});
  CHECK(y.dtype() == x.dtype() && cosine.dtype() == accumulate_dtype(x.dtype()) &&
            sine.dtype() == cosine.dtype(),
        "x is ", name_of(x.dtype()), ", y is ", name_of(y.dtype()), ", cosine is ",
        name_of(cosine.dtype()), ", sine is ", name_of(sine.dtype()));
  run_op(stream, cpu::rope, cuda::rope, y, x, cosine, sine, dims, rotation);
}

}  // namespace ferry
