#include "core/ops/elementwise.h"

#include "core/ops/elementwise_kernels.h"
#include "core/ops/run_op.h"

namespace ferry {
namespace {

bool is_float(DType dtype) {
  return dtype == DType::F32 || dtype == DType::F64 || dtype == DType::BF16;
}

void check_float(const Tensor& y) {
  CHECK(y.defined() && is_float(y.dtype()), "y is ", name_of(y.dtype()));
}

void check_alike(const Tensor& y, const Tensor& x) {
  check_float(y);
  CHECK(x.defined() && y.numel() == x.numel(), "shapes ", y.shape(), " and ", x.shape());
  CHECK(y.dtype() == x.dtype(), name_of(y.dtype()), " and ", name_of(x.dtype()));
}

// tensor [T, D] with one gate per row.
void check_gated(const Tensor& tensor, const Tensor& x, const Tensor& gate) {
  CHECK(x.defined() && x.shape().rank() == 2, "x must be [T, D]");
  check_alike(tensor, x);
  CHECK(gate.defined() && gate.numel() == x.dim(0), "gate has shape ", gate.shape(), " for x ",
        x.shape());
  CHECK(gate.dtype() == x.dtype(), "gate is ", name_of(gate.dtype()));
}

}  // namespace

void add(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b) {
  check_alike(y, a);
  check_alike(y, b);
  run_op(stream, cpu::add, cuda::add, y, a, b);
}

void accumulate(Stream& stream, const Tensor& y, const Tensor& x) {
  check_float(y);
  check_float(x);
  CHECK(y.numel() == x.numel(), "shapes ", y.shape(), " and ", x.shape());
  CHECK(y.dtype() == x.dtype() || size_of(x.dtype()) < size_of(y.dtype()), name_of(x.dtype()),
        " added to ", name_of(y.dtype()));
  run_op(stream, cpu::accumulate, cuda::accumulate, y, x);
}

void scale(Stream& stream, const Tensor& y, double factor) {
  check_float(y);
  run_op(stream, cpu::scale, cuda::scale, y, factor);
}

void cast(Stream& stream, const Tensor& y, const Tensor& x) {
  check_float(y);
  check_float(x);
  CHECK(y.numel() == x.numel(), "shapes ", y.shape(), " and ", x.shape());
  run_op(stream, cpu::cast, cuda::cast, y, x);
}

void fill(Stream& stream, const Tensor& y, double value) {
  check_float(y);
  run_op(stream, cpu::fill, cuda::fill, y, value);
}

void fill_normal(Stream& stream, const Tensor& y, double std, const RandomKey& key,
                 uint64_t first_index) {
  check_float(y);
  const int64_t n = y.numel();
  fill_normal_rows(stream, y.reshape({1, n}), std, key, first_index, n);
}

void fill_normal_rows(Stream& stream, const Tensor& y, double std, const RandomKey& key,
                      uint64_t first_index, int64_t row_stride) {
  check_float(y);
  CHECK(y.shape().rank() == 2 && row_stride >= y.dim(1), "y has shape ", y.shape(),
        ", cut out of rows of ", row_stride);
  run_op(stream, cpu::fill_normal_rows, cuda::fill_normal_rows, y, std, key, first_index,
         row_stride);
}

void dropout(Stream& stream, const Tensor& y, const Tensor& x, double probability,
             const RandomKey& key, uint64_t first_index) {
  check_alike(y, x);
  CHECK(0 <= probability && probability < 1, "probability ", probability);
  run_op(stream, cpu::dropout, cuda::dropout, y, x, probability, key, first_index);
}

void sigmoid_gate_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& gate) {
  check_gated(y, x, gate);
  run_op(stream, cpu::sigmoid_gate_forward, cuda::sigmoid_gate_forward, y, x, gate);
}

void sigmoid_gate_backward(Stream& stream, const Tensor& dx, const Tensor& dgate, const Tensor& dy,
                           const Tensor& x, const Tensor& gate) {
  check_gated(dx, x, gate);
  check_gated(dy, x, dgate);
  run_op(stream, cpu::sigmoid_gate_backward, cuda::sigmoid_gate_backward, dx, dgate, dy, x, gate);
}

}  // namespace ferry
