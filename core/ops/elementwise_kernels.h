#pragma once

// The two backends of elementwise.h. Arguments are already checked.
//
// fill_normal_rows, both backends, all in float before the product with std in compute_t of y:
//   {w0, w1, ..} = philox(key, index);  u = ((w0 >> 8) + 1) * 2^-24 in (0, 1];  t = uniform(w1)
//   normal = sqrt(-2 log u) * cos(2 pi t)

#include "core/ops/elementwise.h"

namespace ferry::cpu {

void add(const Tensor& y, const Tensor& a, const Tensor& b);
void accumulate(const Tensor& y, const Tensor& x);
void scale(const Tensor& y, double factor);
void cast(const Tensor& y, const Tensor& x);
void fill(const Tensor& y, double value);
void fill_normal_rows(const Tensor& y, double std, const RandomKey& key, uint64_t first_index,
                      int64_t row_stride);
void dropout(const Tensor& y, const Tensor& x, double probability, const RandomKey& key,
             uint64_t first_index);
void sigmoid_gate_forward(const Tensor& y, const Tensor& x, const Tensor& gate);
void sigmoid_gate_backward(const Tensor& dx, const Tensor& dgate, const Tensor& dy, const Tensor& x,
                           const Tensor& gate);

}  // namespace ferry::cpu

namespace ferry::cuda {

void add(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b);
void accumulate(Stream& stream, const Tensor& y, const Tensor& x);
void scale(Stream& stream, const Tensor& y, double factor);
void cast(Stream& stream, const Tensor& y, const Tensor& x);
void fill(Stream& stream, const Tensor& y, double value);
void fill_normal_rows(Stream& stream, const Tensor& y, double std, const RandomKey& key,
                      uint64_t first_index, int64_t row_stride);
void dropout(Stream& stream, const Tensor& y, const Tensor& x, double probability,
             const RandomKey& key, uint64_t first_index);
void sigmoid_gate_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& gate);
void sigmoid_gate_backward(Stream& stream, const Tensor& dx, const Tensor& dgate, const Tensor& dy,
                           const Tensor& x, const Tensor& gate);

}  // namespace ferry::cuda
