#pragma once

// Small blocking copies between tensors and the host's vectors, for logging, start-up and tests.
// Nothing inside forward or backward may call them: they wait for the stream.

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace ferry {

/// The tensor's elements after all work enqueued on `stream` so far.
template <class T>
std::vector<T> read_back(Stream& stream, const Tensor& tensor) {
  CHECK(DTypeOf<T>::value == tensor.dtype(), "tensor is ", name_of(tensor.dtype()));
  const Tensor host = Tensor::host(stream.device(), "read back", tensor.shape(), tensor.dtype());
  stream.copy(host, tensor);
  stream.record().wait_host();
  const T* data = host.data<T>();
  return std::vector<T>(data, data + host.numel());
}

/// A new tensor on the stream's device with these elements.
template <class T>
Tensor from_host(Stream& stream, std::string_view name, std::span<const T> elements,
                 const Shape& shape) {
  CHECK(static_cast<int64_t>(elements.size()) == shape.numel(), elements.size(),
        " elements for shape ", shape);
  const Tensor host = Tensor::host(stream.device(), "staging", shape, DTypeOf<T>::value);
  std::copy(elements.begin(), elements.end(), host.data<T>());
  const Tensor tensor = Tensor::empty(stream, name, shape, DTypeOf<T>::value);
  stream.copy(tensor, host);
  return tensor;
}
template <class T>
Tensor from_host(Stream& stream, std::string_view name, const std::vector<T>& elements,
                 const Shape& shape) {
  return from_host(stream, name, std::span<const T>(elements), shape);
}

/// The elements as double, from any floating-point or integer dtype.
std::vector<double> read_back_as_double(Stream& stream, const Tensor& tensor);

}  // namespace ferry
