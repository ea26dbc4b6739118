#pragma once

// Tensors with values that do not depend on the device, and outputs that show what was not written.

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "core/host_copy.h"
#include "core/tensor.h"

namespace ferry::testing {

/// Uniform in [-scale, scale).
inline std::vector<double> random_values(int64_t count, uint64_t seed, double scale = 1) {
  std::mt19937_64 generator(seed);
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values)
    value = scale * (static_cast<double>(generator() >> 11) * 0x1p-52 - 1);
  return values;
}

/// A tensor of any float dtype with these values, rounded to it.
inline Tensor tensor_of(Stream& stream, const std::vector<double>& values, const Shape& shape,
                        DType dtype) {
  return dispatch_float(dtype, [&]<class T>() {
    std::vector<T> elements;
    elements.reserve(values.size());
    for (const double value : values) elements.push_back(static_cast<T>(value));
    return from_host(stream, "test", elements, shape);
  });
}

/// Uniform in [-scale, scale), made on the host and then rounded to `dtype` (a float dtype).
inline Tensor random_tensor(Stream& stream, const Shape& shape, DType dtype, uint64_t seed,
                            double scale = 1) {
  return tensor_of(stream, random_values(shape.numel(), seed, scale), shape, dtype);
}

/// Integers in [0, bound), I32.
inline Tensor random_ints(Stream& stream, const Shape& shape, int32_t bound, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<int32_t> values(static_cast<size_t>(shape.numel()));
  for (int32_t& value : values)
    value = static_cast<int32_t>(generator() % static_cast<uint64_t>(bound));
  return from_host(stream, "test", values, shape);
}

/// All bits set: NaN for float dtypes, -1 for integers.
inline Tensor poisoned(Stream& stream, const Shape& shape, DType dtype) {
  const Tensor host = Tensor::host(stream.device(), "poison", shape, dtype);
  std::memset(host.raw(), 0xff, static_cast<size_t>(host.bytes()));
  const Tensor tensor = Tensor::empty(stream, "test output", shape, dtype);
  stream.copy(tensor, host);
  return tensor;
}

/// All zero.
inline Tensor zeros(Stream& stream, const Shape& shape, DType dtype) {
  const Tensor tensor = Tensor::empty(stream, "test zeros", shape, dtype);
  stream.zero(tensor);
  return tensor;
}

}  // namespace ferry::testing
