#pragma once

// A tensor: shared storage, an offset, a dtype and up to four dims, always contiguous.
//
// There are no operators, no broadcasting and no hidden copies: arithmetic is in core/ops. Copying
// a Tensor shares its memory. Only views that stay contiguous exist: reshape, and a cut of dim 0.

#include <memory>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/stream.h"

namespace ferry {

class Tensor {
 public:
  /// No tensor at all; `defined()` is false. Optional arguments of ops use it.
  Tensor() = default;

  /// New memory on the stream's device, first used on that stream. `name` goes into the ledger.
  static Tensor empty(Stream& stream, std::string_view name, const Shape& shape, DType dtype);
  /// New host memory; pinned when the device is a GPU.
  static Tensor host(Device& device, std::string_view name, const Shape& shape, DType dtype);

  bool defined() const { return storage_ != nullptr; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t dim(int i) const { return shape_[i]; }
  int64_t numel() const { return shape_.numel(); }
  int64_t bytes() const { return numel() * static_cast<int64_t>(size_of(dtype_)); }
  bool on_host() const { return storage_ && storage_->host(); }

  /// The first element. The caller knows that the memory is ready.
  void* raw() const {
    CHECK(defined(), "an undefined tensor has no elements");
    return static_cast<std::byte*>(storage_->data()) + offset_;
  }
  template <class T>
  T* data() const {
    CHECK(DTypeOf<T>::value == dtype_, "tensor is ", name_of(dtype_));
    return static_cast<T*>(raw());
  }

  /// The same elements with other dims; the number of elements must be equal.
  Tensor reshape(const Shape& shape) const;
  /// Rows [begin, end) of dim 0.
  Tensor rows(int64_t begin, int64_t end) const;

  /// True if both name the same bytes as the same dtype.
  bool same_memory(const Tensor& other) const {
    return storage_ == other.storage_ && offset_ == other.offset_ && numel() == other.numel() &&
           dtype_ == other.dtype_;
  }
  const std::shared_ptr<Storage>& storage() const { return storage_; }
  int64_t byte_offset() const { return offset_; }

 private:
  std::shared_ptr<Storage> storage_;
  int64_t offset_ = 0;  // bytes
  DType dtype_ = DType::F32;
  Shape shape_;
};

/// CHECK_SHAPE(x, {T, D}) quotes the tensor's name and both shapes.
#define CHECK_SHAPE(tensor, ...)                                                         \
  CHECK((tensor).defined() && (tensor).shape() == (::ferry::Shape __VA_ARGS__), #tensor, \
        " has shape ", (tensor).shape(), ", not ", (::ferry::Shape __VA_ARGS__))

}  // namespace ferry
