#pragma once

// Elementwise arithmetic. Tensors of one call have equal numel unless said otherwise; outputs may
// be the same memory as inputs. Sums are made in accumulate_dtype and rounded once.

#include "core/rng.h"
#include "core/tensor.h"

namespace ferry {

/// y = a + b, one dtype.
void add(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b);
/// y += x; x may be of a narrower float dtype than y.
void accumulate(Stream& stream, const Tensor& y, const Tensor& x);
/// y *= factor (any float dtype).
void scale(Stream& stream, const Tensor& y, double factor);
/// y = x converted between float dtypes, rounding to nearest even.
void cast(Stream& stream, const Tensor& y, const Tensor& x);
/// Every element = value (float dtypes).
void fill(Stream& stream, const Tensor& y, double value);

/// Normal random numbers with mean 0: element i from counter first_index + i of `key`
/// (Box-Muller in FP32 from two 24-bit uniforms). CPU and CUDA agree up to rounding.
void fill_normal(Stream& stream, const Tensor& y, double std, const RandomKey& key,
                 uint64_t first_index);
/// The same for rows that are cut out of longer ones: element c of row r of y [R, C] from counter
/// first_index + r * row_stride + c.
void fill_normal_rows(Stream& stream, const Tensor& y, double std, const RandomKey& key,
                      uint64_t first_index, int64_t row_stride);

/// Inverted dropout: y = x * keep / (1 - p), where element i is kept if
/// uniform_at(key, first_index + i) >= p. The same call on gradients is the backward.
void dropout(Stream& stream, const Tensor& y, const Tensor& x, double probability,
             const RandomKey& key, uint64_t first_index);

/// y [T, D] = x [T, D] * sigmoid(gate [T]) (shared experts with a gate).
void sigmoid_gate_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& gate);
/// dx [T, D] and dgate [T]; x and gate as in forward.
void sigmoid_gate_backward(Stream& stream, const Tensor& dx, const Tensor& dgate, const Tensor& dy,
                           const Tensor& x, const Tensor& gate);

}  // namespace ferry
