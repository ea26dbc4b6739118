#pragma once

// The element types of tensors, and bfloat16 as a storage type of the host.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/check.h"

namespace ferry {

enum class DType : uint8_t { F32, F64, BF16, I32, I64, U8 };

constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::F64:
    case DType::I64:
      return 8;
    case DType::F32:
    case DType::I32:
      return 4;
    case DType::BF16:
      return 2;
    case DType::U8:
      return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return "f32";
    case DType::F64:
      return "f64";
    case DType::BF16:
      return "bf16";
    case DType::I32:
      return "i32";
    case DType::I64:
      return "i64";
    case DType::U8:
      return "u8";
  }
  return "?";
}

/// bfloat16: the upper half of a float. Conversion rounds to nearest, ties to even, as CUDA does.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    const bool is_nan = (word & 0x7fffffffu) > 0x7f800000u;
    const uint32_t rounded = word + 0x7fffu + ((word >> 16) & 1u);
    bits = static_cast<uint16_t>(is_nan ? (word >> 16) | 0x40u : rounded >> 16);
  }
  explicit BFloat16(double value) : BFloat16(static_cast<float>(value)) {}
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

/// The DType of a C++ element type.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::F32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::F64;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::BF16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::I32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::I64;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::U8;
};

/// The type in which values of T are added and multiplied: double for double, else float.
template <class T>
struct ComputeType {
  using type = float;
};
template <>
struct ComputeType<double> {
  using type = double;
};
template <class T>
using compute_t = typename ComputeType<T>::type;

/// The dtype of gradients, norms and statistics that go with activations of `dtype`: F64 for F64,
/// else F32.
constexpr DType accumulate_dtype(DType dtype) {
  return dtype == DType::F64 ? DType::F64 : DType::F32;
}

/// Calls body.operator()<T>() with the C++ type of a floating-point dtype.
template <class Body>
decltype(auto) dispatch_float(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::F32:
      return body.template operator()<float>();
    case DType::F64:
      return body.template operator()<double>();
    case DType::BF16:
      return body.template operator()<BFloat16>();
    default:
      break;
  }
  fail(ExitCode::Internal, "a floating-point dtype is needed, not ", name_of(dtype));
}

}  // namespace ferry
