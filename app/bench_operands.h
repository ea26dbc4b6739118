#pragma once

#include "core/ops/elementwise.h"
#include "core/rng.h"
#include "core/tensor.h"

namespace ferry {

/// What benchmarks of products and other ops derive from: operands on one stream, every random one
/// of other numbers.
class BenchOperands {
 protected:
  BenchOperands(Stream& stream, DType dtype, uint64_t seed = 1)
      : stream_(stream), dtype_(dtype), key_{seed, 0, 0} {}

  Tensor output(const Shape& shape, DType dtype) const {
    return Tensor::empty(stream_, "bench", shape, dtype);
  }
  Tensor output(const Shape& shape) const { return output(shape, dtype_); }
  Tensor random(const Shape& shape, DType dtype) {
    const Tensor tensor = output(shape, dtype);
    fill_normal(stream_, tensor, 1.0, next_key(), 0);
    return tensor;
  }
  Tensor random(const Shape& shape) { return random(shape, dtype_); }
  RandomKey next_key() { return key_ = key_.at_site(key_.site + 1); }

  Stream& stream_;
  DType dtype_;

 private:
  RandomKey key_;
};

}  // namespace ferry
