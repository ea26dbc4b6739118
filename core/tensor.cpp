#include "core/tensor.h"

namespace ferry {

Tensor Tensor::empty(Stream& stream, std::string_view name, const Shape& shape, DType dtype) {
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.shape_ = shape;
  tensor.storage_ = stream.device().allocate(stream, name, tensor.bytes());
  return tensor;
}

Tensor Tensor::host(Device& device, std::string_view name, const Shape& shape, DType dtype) {
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.shape_ = shape;
  tensor.storage_ = device.allocate_host(name, tensor.bytes());
  return tensor;
}

Tensor Tensor::reshape(const Shape& shape) const {
  CHECK(shape.numel() == numel(), "cannot see ", shape_, " as ", shape);
  Tensor view = *this;
  view.shape_ = shape;
  return view;
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  CHECK(shape_.rank() >= 1 && 0 <= begin && begin <= end && end <= shape_[0], "rows [", begin, ", ",
        end, ") of ", shape_);
  std::vector<int64_t> dims(shape_.dims().begin(), shape_.dims().end());
  const int64_t row_elements = shape_[0] == 0 ? 0 : numel() / shape_[0];
  dims[0] = end - begin;
  Tensor view = *this;
  view.shape_ = Shape(std::span<const int64_t>(dims));
  view.offset_ += begin * row_elements * static_cast<int64_t>(size_of(dtype_));
  return view;
}

}  // namespace ferry
