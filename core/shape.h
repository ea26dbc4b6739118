#pragma once

// The dims of a tensor: up to four, row-major, the last one contiguous.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <span>

#include "core/check.h"

namespace ferry {

class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims)
      : Shape(std::span<const int64_t>(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const int64_t> dims) : rank_(static_cast<int>(dims.size())) {
    CHECK(rank_ <= kMaxRank, "a shape has at most ", kMaxRank, " dims");
    for (int i = 0; i < rank_; ++i) {
      CHECK(dims[i] >= 0, "dim ", i, " is ", dims[i]);
      dims_[i] = dims[i];
    }
  }

  int rank() const { return rank_; }
  /// The size of dim i; negative i counts from the end.
  int64_t operator[](int i) const {
    const int index = i < 0 ? i + rank_ : i;
    CHECK(index >= 0 && index < rank_, "dim ", i, " of a shape with ", rank_, " dims");
    return dims_[index];
  }
  int64_t numel() const {
    int64_t product = 1;
    for (int i = 0; i < rank_; ++i) product *= dims_[i];
    return product;
  }
  std::span<const int64_t> dims() const { return {dims_.data(), static_cast<size_t>(rank_)}; }
  bool operator==(const Shape&) const = default;

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

inline std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  out << '[';
  for (int i = 0; i < shape.rank(); ++i) out << (i ? ", " : "") << shape[i];
  return out << ']';
}

}  // namespace ferry
